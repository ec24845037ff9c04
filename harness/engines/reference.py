"""The reference engine: how it is driven, and where its internals are.

Besides it only `throughput.py`, which runs as a child of its own, imports `harness.refengine`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness import refengine
from harness.core import (
    Json,
    MemoryTrace,
    ProbeSnapshot,
    RequestOutput,
    Runner,
    Setting,
    Space,
    Step,
    Workload,
    decode,
    encode,
)
from harness.refengine import envs
from harness.refengine.runner import v1, v2

from .base import (
    EngineModules,
    EngineOutOfMemory,
    EngineRefused,
    InternalMovedError,
)
from .reference_args import engine_kwargs
from .reference_steps import STEPS, read_leftover, take_step, to_output, told_apart
from .stack_view import StackView

if TYPE_CHECKING:
    import torch
    from torch import nn


class ReferenceModules:
    """Modules of the reference engine, by their path in it."""

    def module(self, role: str) -> ModuleType:
        """See `EngineModules.module`."""
        try:
            return importlib.import_module(f"{refengine.__name__}.{role}")
        except ModuleNotFoundError:
            raise InternalMovedError(f"{refengine.__name__}.{role}") from None


class ReferenceEngine:
    """Runs `harness.refengine.LLM`; its worker is reached through `collective_rpc` only."""

    supports = frozenset({"generate", *STEPS})
    enters_itself = False

    def __init__(self) -> None:
        self.rank_probes: tuple[ProbeSnapshot, ...] = ()
        self.modules: EngineModules = ReferenceModules()
        self.llm: refengine.LLM | None = None

    def start(self, setting: Setting, workload: Workload, *, num_threads: int) -> None:
        """See `Engine.start`."""
        self.workload = workload
        kwargs = engine_kwargs(setting, workload, num_threads=num_threads)
        model = workload.model.path
        try:
            envs.read_envs()
            refengine.EngineConfig.from_args(model, **kwargs)
        except (ValueError, TypeError) as error:
            raise EngineRefused(str(error)) from error
        try:
            self.llm = refengine.LLM(model, **kwargs)
        except refengine.UnsupportedSettingError as error:
            raise EngineRefused(str(error)) from error
        except refengine.OutOfDeviceMemoryError as error:
            raise EngineOutOfMemory(str(error)) from error
        self.rpc("harness_loaded")

    def generate(self, step_idx: int) -> tuple[RequestOutput, ...]:
        """See `Engine.generate`."""
        answers = self.ask()
        return tuple(to_output(answer, step_idx) for answer in answers)

    def ask(self, abort_at_end: Collection[int] = ()) -> list[refengine.RequestOutput]:
        """The engine's own answers to all prompts of the workload; some may be aborted.

        Raises:
            EngineRefused: the engine refuses to compute as it is now.
            EngineOutOfMemory: there is no room to compute.
        """
        with told_apart():
            return self.started().generate(
                prompt_token_ids=self.workload.prompt_token_ids,
                sampling_params=refengine.SamplingParams(**encode(self.workload.sampling_params)),
                abort_at_end=abort_at_end,
            )

    def rpc(self, method: str, *args: Json) -> Json:
        """See `Engine.rpc`; every rank does it, rank 0 answers."""
        return self.started().collective_rpc(method, args)[0]

    def probe(self) -> ProbeSnapshot:
        """See `Engine.probe`; every rank is asked."""
        found = self.started().collective_rpc("harness_probe")
        first, *others = (
            replace(probe, rank=rank, is_core_process=probe.process_id != os.getpid())
            for rank, probe in enumerate(decode(ProbeSnapshot, each) for each in found)
        )
        self.rank_probes = tuple(others)
        return first

    def do(self, step: Step) -> None:
        """See `Engine.do`."""
        with told_apart():
            take_step(self, step)

    def leftover(self) -> MemoryTrace | None:
        """See `Engine.leftover`; a core in a process of its own says it before it exits."""
        left = None if self.llm is None else self.llm.left_behind
        return None if left is None else read_leftover(left)

    def shutdown(self) -> None:
        """See `Engine.shutdown`."""
        if self.llm is not None:
            self.llm.shutdown()

    def started(self) -> refengine.LLM:
        """The engine; an assertion before `start`."""
        assert self.llm is not None, "start() first"
        return self.llm


class ReferenceView(StackView):
    """Where things are inside a live worker of the reference engine; see `EngineView`."""

    version = refengine.__version__
    not_observed: Sequence[str] = ()
    sees_compute = True
    slot_attribute = "slot_idx"
    tensor_part = (0, 1)
    keeps_codes = True

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.modules: EngineModules = ReferenceModules()

    @property
    def runner(self) -> object:
        """See `EngineView`."""
        return self._read(self.worker, "model_runner")

    @property
    def is_asleep(self) -> bool:
        """See `EngineView`; also true of weights that woke without content."""
        return not self._read(self.worker, "has_weights")

    @property
    def runner_version(self) -> Runner | None:
        """See `EngineView`."""
        runner = self.runner
        if isinstance(runner, v1.GPUModelRunner):
            return "v1"
        return "v2" if isinstance(runner, v2.GPUModelRunner) else None

    @property
    def offloader(self) -> object:
        """See `EngineView`."""
        return self._read(self.runner, "offloader")

    @property
    def model(self) -> nn.Module:
        """See `EngineView`."""
        model: nn.Module = self._read(self.runner, "model")
        return model

    @property
    def effective_config(self) -> Mapping[str, Json]:
        """See `EngineView`."""
        config = asdict(self._read(self.worker, "config"))
        return {**config.pop("offload"), **config}

    @property
    def env(self) -> Mapping[str, Json]:
        """See `EngineView`."""
        env: Mapping[str, Json] = self._read(self.worker, "env")
        return env

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `EngineView`."""
        return tuple(self._read(self.worker, "get_warnings")())

    @property
    def observers(self) -> Sequence[object]:
        """See `EngineView`."""
        observers: Sequence[object] = self._device("observers")
        return observers

    @property
    def device_name(self) -> str:
        """See `EngineView`."""
        return str(self._device("name"))

    def memory(self) -> MemoryTrace:
        """See `EngineView`."""
        stats = self._device("memory_stats")()
        return MemoryTrace(
            device_bytes=stats["device"]["current"],
            device_peak_bytes=stats["device"]["peak"],
            device_capacity_bytes=stats["capacity"],
            pinned_bytes=stats["pinned"]["current"],
            pinned_allocated_bytes=stats["pinned"]["taken"],
            host_bytes=stats["host"]["by_kind"].get("weights", 0),
            by_kind=stats["device"]["by_kind"],
        )

    def space_of(self, tensor: torch.Tensor) -> Space:
        """See `EngineView`."""
        space: Space = self._device("space_of")(tensor)
        return space

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """See `EngineView`."""
        return bool(self._device("is_pinned")(tensor))

    def is_host_view(self, param: torch.Tensor) -> bool:
        """See `EngineView`; real hardware can compute from a CUDA tensor only."""
        is_visible = param.is_cuda or self.device_name == "simulated"
        return is_visible and self.space_of(param.data) != "device"

    def host_copy(self, param: torch.Tensor) -> torch.Tensor | None:
        """See `EngineView`."""
        copy: torch.Tensor | None = getattr(param, "_vllm_offloaded_cpu_data", None)
        return copy

    def host_copies_of(self, item: object) -> Mapping[str, torch.Tensor]:
        """See `StackView`."""
        copies: Mapping[str, torch.Tensor] = self._read(item, "host_copies")
        return copies

    def refills(self) -> Mapping[int, Sequence[int]]:
        """See `EngineView`."""
        refills: Mapping[int, Sequence[int]] = self._read(self.offloader, "refills")
        return refills

    def watch_reads(self) -> None:
        """See `EngineView`; this engine declares what it reads."""

    def synchronize(self) -> None:
        """See `EngineView`."""
        self._device("synchronize")()

    def _device(self, name: str) -> Any:
        return self._read(self._read(self.worker, "device"), name)
