"""The accelerate engine: a transformers model in this process, offloaded by accelerate's hooks."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core import (
    Json,
    MemoryTrace,
    ProbeSnapshot,
    RequestOutput,
    Setting,
    Step,
    Workload,
    decode,
)

from .accelerate_load import load_model, read_args, require, said_by_engine, tied_names
from .accelerate_view import AccelerateModules
from .base import EXTENSION, EngineModules, EngineOutOfMemory, EngineRefused
from .greedy import Decoder

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(slots=True, kw_only=True)
class Device:
    """What a model computes on, with the recorders on it."""

    name: str
    observers: list[Any] = field(default_factory=list)

    def allocation_of(self, tensor: torch.Tensor) -> None:
        """No account is kept of single allocations."""
        del tensor


def get_device(name: str) -> Device:
    """Make the device; recorders enter here (see `harness.observe.install`)."""
    return Device(name=name)


@dataclass(slots=True, kw_only=True)
class AccelerateWorker:
    """A live model and how it was made; the view reads it."""

    model: nn.Module
    model_path: str
    loader: str
    device: Device
    folder: Path
    """Where weights on disk are."""
    ties: Mapping[str, str]
    """Name of a tied parameter -> the name it goes by."""
    warnings: tuple[str, ...] = ()
    peak_bytes: int = 0
    """Most bytes that were ever seen on a device without an account of its own."""


class AccelerateEngine:
    """One transformers model in this process, offloaded by accelerate's hooks."""

    supports = frozenset({"generate"})
    enters_itself = False
    rank_probes: tuple[ProbeSnapshot, ...] = ()

    def __init__(self) -> None:
        self.modules: EngineModules = AccelerateModules()
        self.worker: Any = None
        self.folder: Path | None = None

    def start(self, setting: Setting, workload: Workload, *, num_threads: int) -> None:
        """See `Engine.start`."""
        self.workload = workload
        args = read_args(setting, workload)
        torch = require("torch")
        for name in ("transformers", "accelerate"):
            require(name)
        if args["device"] == "cuda" and not torch.cuda.is_available():
            raise EngineRefused("device='cuda' was asked for, and torch sees no CUDA device")
        torch.set_num_threads(num_threads)
        self.folder = Path(tempfile.mkdtemp(prefix="harness-accelerate-"))
        with memory_errors(), said_by_engine() as said:
            model = load_model(setting, workload, args, self.folder)
        package, _, mixin = EXTENSION.rpartition(".")
        extension = getattr(importlib.import_module(package), mixin)
        self.worker = type("Worker", (AccelerateWorker, extension), {})(
            model=model,
            model_path=workload.model.path,
            loader=args["loader"],
            device=get_device(args["device"]),
            folder=self.folder,
            ties=tied_names(model),
            warnings=tuple(dict.fromkeys(said)),
        )
        self.rpc("harness_loaded")

    def generate(self, step_idx: int) -> tuple[RequestOutput, ...]:
        """See `Engine.generate`."""
        decoder = Decoder(self.worker.model, self.workload)
        with memory_errors():
            return tuple(
                decoder.answer(idx, step_idx) for idx in range(len(self.workload.prompt_token_ids))
            )

    def rpc(self, method: str, *args: Json) -> Json:
        """See `Engine.rpc`."""
        assert self.worker is not None, "start() first"
        return getattr(self.worker, method)(*args)

    def probe(self) -> ProbeSnapshot:
        """See `Engine.probe`."""
        return decode(ProbeSnapshot, self.rpc("harness_probe"))

    def do(self, step: Step) -> None:
        """See `Engine.do`."""
        raise EngineRefused(f"step {step.name!r} is not one of this engine's")

    def leftover(self) -> MemoryTrace | None:
        """See `Engine.leftover`."""
        return None

    def shutdown(self) -> None:
        """See `Engine.shutdown`."""
        self.worker = None
        if self.folder is not None:
            shutil.rmtree(self.folder)
            self.folder = None


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Tell CUDA's out-of-memory from other errors."""
    torch = require("torch")
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineOutOfMemory(str(error)) from error
