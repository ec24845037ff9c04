"""Where things are inside a live vLLM worker, for every release; `config.py` has its arguments."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from harness.core import Json, MemoryTrace, Runner, Space
from harness.core.setting import OWNED_ENV
from harness.engines.base import EngineModules
from harness.engines.stack_view import StackView

from . import emulation, taps
from .config import effective_config
from .device import live_device
from .memory import read_memory
from .modules import PATHS, VllmModules
from .pointers import is_mapped, memory_space

if TYPE_CHECKING:
    from torch import nn

MAX_WARNINGS = 20
GRAPHS_HIDE = "in recorded graphs: order of copies and reads, weights at the moment of compute"
NO_STREAMS = "copies are made at once here: no race can show"


class VllmView(StackView):
    """See `EngineView`."""

    slot_attribute = "_buffer_slot_idx"
    keeps_codes = False

    def __init__(self, worker: Any) -> None:
        # A worker of vLLM may stand in a wrapper that passes its attributes on.
        self.worker = worker
        self.modules: EngineModules = VllmModules()

    @property
    def version(self) -> str:
        """See `EngineView`."""
        return str(self._read(importlib.import_module("vllm"), "__version__"))

    @property
    def runner(self) -> object:
        """See `EngineView`."""
        return self._read(self.worker, "model_runner")

    @property
    def runner_version(self) -> Runner | None:
        """See `EngineView`; by the modules of the live class and its bases."""
        found = {cls.__module__ for cls in type(self.runner).__mro__}
        if PATHS["runner.v2"] in found:
            return "v2"
        return "v1" if PATHS["runner.v1"] in found else None

    @property
    def offloader(self) -> object:
        """See `EngineView`."""
        return self._read(self.modules.module("offloader"), "get_offloader")()

    @property
    def model(self) -> nn.Module:
        """See `EngineView`."""
        model: nn.Module = self._read(self.runner, "get_model")()
        return model

    @property
    def effective_config(self) -> Mapping[str, Json]:
        """See `EngineView`; by the names of vLLM's arguments."""
        return effective_config(self._read(self.worker, "vllm_config"), self._read)

    @property
    def env(self) -> Mapping[str, Json]:
        """See `EngineView`."""
        envs = importlib.import_module("vllm.envs")
        return {name: getattr(envs, name, None) for name in OWNED_ENV}

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `EngineView`; what vLLM logged as a warning in this process."""
        return tuple(WARNINGS)

    @property
    def observers(self) -> Sequence[object]:
        """See `EngineView`."""
        device = live_device()
        return () if device is None else device.observers

    @property
    def is_asleep(self) -> bool:
        """See `EngineView`; by the memory behind the weights, whatever was asked of the engine.

        Weights that were discarded are told by the extension: memory is behind them again before
        they are.
        """
        if getattr(self.worker, "_harness_is_asleep", False):
            return True
        if not self.effective_config.get("enable_sleep_mode"):
            return False
        return any(not is_mapped(param.data) for param in self.model.parameters())

    @property
    def tensor_part(self) -> tuple[int, int]:
        """See `EngineView`; tensor parallel ranks of one pipeline stage are neighbours."""
        config = self._read(self._read(self.worker, "vllm_config"), "parallel_config")
        size = int(self._read(config, "tensor_parallel_size"))
        return int(self._read(self.worker, "rank")) % size, size

    @property
    def sees_compute(self) -> bool:
        """See `EngineView`."""
        config = self._read(self.worker, "vllm_config")
        return bool(self._read(self._read(config, "model_config"), "enforce_eager"))

    @property
    def not_observed(self) -> Sequence[str]:
        """See `EngineView`."""
        found = [] if self.sees_compute else [GRAPHS_HIDE]
        if self.device_name == "cpu" and emulation.is_on():
            found.append(NO_STREAMS)
        return found

    @property
    def device_name(self) -> str:
        """See `EngineView`."""
        return str(self._read(self.worker, "device").type)

    def memory(self) -> MemoryTrace:
        """See `EngineView`."""
        return read_memory(self)

    def space_of(self, tensor: torch.Tensor) -> Space:
        """See `EngineView`; where the platform is a CPU, its memory is the device's."""
        if self.device_name == "cpu":
            return "host" if emulation.is_host(tensor) else "device"
        return memory_space(tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """See `EngineView`."""
        return self.space_of(tensor) == "pinned"

    def is_host_view(self, param: torch.Tensor) -> bool:
        """See `EngineView`."""
        if self.device_name == "cpu":
            is_marked = bool(getattr(param, "_vllm_is_uva_offloaded", False))
            return emulation.is_host(param.data) and is_marked
        return param.is_cuda and self.space_of(param.data) != "device"

    def host_copy(self, param: torch.Tensor) -> torch.Tensor | None:
        """See `EngineView`; vLLM's views and its copies on forward hold it as their own data."""
        return param.data if self.space_of(param.data) != "device" else None

    def host_copies_of(self, item: object) -> Mapping[str, torch.Tensor]:
        """See `StackView`."""
        offloaders = self._read(item, "_param_offloaders").items()
        return {name: self._read(each, "_cpu_storage") for name, each in offloaders}

    def refills(self) -> Mapping[int, Sequence[int]]:
        """See `EngineView`; as seen, not as vLLM plans them."""
        return {after: tuple(seen) for after, seen in taps.REFILLS.items()}

    def watch_reads(self) -> None:
        """See `EngineView`."""
        device = live_device()
        if device is not None and self.sees_compute:
            taps.watch_reads(self.model, device)

    def synchronize(self) -> None:
        """See `EngineView`."""
        if self.device_name == "cuda":
            torch.cuda.synchronize()


WARNINGS: list[str] = []
"""What vLLM logged as warnings in this process, each once."""


def note_warnings() -> None:
    """Keep what vLLM logs as warnings in this process from now on.

    Where records are made, since vLLM puts its logger's handlers anew when it is configured.
    """
    plain = logging.getLogRecordFactory()

    def make_record(*args: Any, **named: Any) -> logging.LogRecord:
        record = plain(*args, **named)
        if record.levelno >= logging.WARNING and record.name.split(".")[0] == "vllm":
            _note(record)
        return record

    logging.setLogRecordFactory(make_record)


def _note(record: logging.LogRecord) -> None:
    """Keep one, if it is new; one whose arguments do not fit, as it was written."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError):
        text = str(record.msg)
    text = " ".join(text.split())[:300]
    if len(WARNINGS) < MAX_WARNINGS and text not in WARNINGS:
        WARNINGS.append(text)
