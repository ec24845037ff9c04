"""What an engine adapter answers to, and how probes and faults see inside a live engine.

Knows no engine. Attribute paths inside one stand in its own adapter only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from harness.core import (
    Json,
    MemoryTrace,
    ProbeSnapshot,
    Registry,
    RequestOutput,
    Runner,
    Setting,
    Space,
    Step,
    Workload,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


EXTENSION = "harness.observe.extension.ProbeExtension"
"""What is mixed into a worker; by name, since this package may not import it."""
POOL_KIND = "buffer_pool"
"""What an engine's device calls the slots that weights are copied into ahead of use."""
LENGTH_MULTIPLE = 64


class EngineRefused(Exception):  # noqa: N818 - a refusal is an answer, not a defect
    """The engine will not run this setting; the text is its own reason."""


class EngineOutOfMemory(Exception):  # noqa: N818 - reads as what happened
    """The device's memory did not suffice; the text is the engine's own."""


class InternalMovedError(Exception):
    """An internal of the engine is not where its adapter looks; the text is its dotted name."""


class EngineModules(Protocol):
    """Modules of an engine by their role, so that a fault can replace names in them."""

    def module(self, role: str) -> ModuleType:
        """Return the module, e.g. `runner.v2` or `offloader.prefetch`.

        Raises:
            InternalMovedError: the engine has no such module.
        """
        ...


class Engine(Protocol):
    """One engine in this process: start, generate as often as asked, probe, shut down."""

    supports: frozenset[str]
    """Kinds of workload step it can do."""
    modules: EngineModules
    enters_itself: bool
    """Faults before the start and recorders are put in place by a plugin in each process."""
    rank_probes: tuple[ProbeSnapshot, ...]
    """What `probe` read in the workers of further ranks."""

    def start(self, setting: Setting, workload: Workload, *, num_threads: int) -> None:
        """Build the engine and load the model.

        Raises:
            EngineRefused: the setting is one the engine will not run.
            EngineOutOfMemory: the model does not fit.
        """
        ...

    def generate(self, step_idx: int) -> tuple[RequestOutput, ...]:
        """Answer all prompts of the workload; answers in the order of the prompts."""
        ...

    def do(self, step: Step) -> None:
        """Do a step that is not `generate`.

        Raises:
            EngineRefused: the engine will not do it with these arguments.
        """
        ...

    def leftover(self) -> MemoryTrace | None:
        """What is still held after `shutdown`; None where nobody can say."""
        ...

    def rpc(self, method: str, *args: Json) -> Json:
        """Call a method of the harness's extension, in the process where the worker lives."""
        ...

    def probe(self) -> ProbeSnapshot:
        """Look inside, now."""
        ...

    def shutdown(self) -> None:
        """Free everything; safe when `start` failed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedModule:
    """One module of a prefetch offloader, as it is now."""

    module: nn.Module
    slot_idx: int | None
    host_copies: Mapping[str, torch.Tensor]
    """Parameter name within the module -> bytes of record."""


class EngineView(Protocol):
    """A live engine seen from its worker; nothing is cached, every call looks again.

    Whatever is not there raises `InternalMovedError`.
    """

    worker: Any
    """The live worker, where the harness's extension keeps what it was told."""

    @property
    def is_asleep(self) -> bool:
        """Whether weights are put away."""
        ...

    @property
    def version(self) -> str:
        """The engine's version."""
        ...

    @property
    def runner(self) -> object:
        """The live model runner."""
        ...

    @property
    def runner_version(self) -> Runner | None:
        """Told from the live runner's class."""
        ...

    @property
    def offloader(self) -> object:
        """The offloader that this process uses."""
        ...

    @property
    def model(self) -> nn.Module:
        """The live model."""
        ...

    @property
    def effective_config(self) -> Mapping[str, Json]:
        """Configuration the engine ended up with, flat."""
        ...

    @property
    def env(self) -> Mapping[str, Json]:
        """Environment values as the engine holds them."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the engine said it will not do."""
        ...

    @property
    def modules(self) -> EngineModules:
        """The engine's modules, for faults."""
        ...

    @property
    def observers(self) -> Sequence[object]:
        """Recorders on the engine's device, as they were put there before it loaded."""
        ...

    @property
    def device_name(self) -> str:
        """Kind of the live device, e.g. `simulated`."""
        ...

    @property
    def reported_offloaded_bytes(self) -> int:
        """The offloader's own count."""
        ...

    def memory(self) -> MemoryTrace:
        """Bytes by the allocator's account."""
        ...

    def space_of(self, tensor: torch.Tensor) -> Space:
        """Where the bytes of a tensor are, asked of the allocation."""
        ...

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether its bytes are in pinned memory, asked of the allocation."""
        ...

    def is_host_view(self, param: torch.Tensor) -> bool:
        """Whether its own bytes are in host memory, where the device can see them."""
        ...

    def host_copy(self, param: torch.Tensor) -> torch.Tensor | None:
        """The host tensor behind a parameter that is a view or copied on forward."""
        ...

    def offloaded_modules(self) -> Sequence[OffloadedModule]:
        """Modules of a prefetch offloader; empty without one."""
        ...

    def pool_slots(self) -> Sequence[Sequence[torch.Tensor]] | None:
        """Buffers of the static pool, a sequence for each slot; None without a pool."""
        ...

    def refills(self) -> Mapping[int, Sequence[int]]:
        """Index of an offloaded module -> indices whose copy was started after it, by its note."""
        ...

    def layer_of(self, name: str) -> int | None:
        """Decoder layer index of a parameter or module name."""
        ...

    @property
    def tensor_part(self) -> tuple[int, int]:
        """(index, of how many) of this worker among those that share each tensor."""
        ...

    @property
    def keeps_codes(self) -> bool:
        """Whether packed weights stand as `observe/checkpoint.py` has them, once loaded."""
        ...

    @property
    def sees_compute(self) -> bool:
        """Whether recorders see each read by compute; not where graphs are replayed."""
        ...

    @property
    def not_observed(self) -> Sequence[str]:
        """What cannot be seen in this mode of the engine."""
        ...

    def watch_reads(self) -> None:
        """Let recorders see what compute reads, where the engine does not tell by itself."""
        ...

    def synchronize(self) -> None:
        """Wait until all work queued on the device has run."""
        ...


def model_length(workload: Workload) -> int:
    """Tokens of the longest prompt with its answer, rounded up where the model has the room."""
    longest = max(len(prompt) for prompt in workload.prompt_token_ids)
    needed = longest + workload.sampling_params.max_tokens
    limit = int(workload.model.config.get("max_position_embeddings", needed))
    rounded = -(-needed // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return needed if rounded > limit else rounded


VIEWS: Registry[Any] = Registry("engine view")
"""Package of an engine -> factory `(worker) -> EngineView`."""
VIEWS.register("harness.refengine", "harness.engines.reference:ReferenceView")
VIEWS.register("vllm", "harness.engines.vllm.view:VllmView")
VIEWS.register("harness.engines.accelerate", "harness.engines.accelerate_view:AccelerateView")

PLANTED: list[str] = []
"""Names of the faults planted in this process so far."""


def view_of(worker: object) -> EngineView:
    """The view that fits a live worker, told from the packages its class comes from.

    Raises:
        InternalMovedError: no registered engine made this worker.
    """
    for cls in type(worker).__mro__:
        for package in VIEWS:
            if cls.__module__ == package or cls.__module__.startswith(f"{package}."):
                view: EngineView = VIEWS.get(package)(worker)
                return view
    raise InternalMovedError(f"{type(worker).__module__}.{type(worker).__qualname__}")
