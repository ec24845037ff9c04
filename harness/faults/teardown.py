"""Faults between engines of one process: what one leaves behind, or shares with another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.core import OffloadConfig
from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name

Forward = Callable[..., Any]


def _keep_first_offloader(modules: EngineModules) -> None:
    """The first offloader that is set stays the process's, whatever ends or is asked after it."""
    base: Any = modules.module("offloader.base")
    plain = base.set_offloader

    def set_offloader(offloader: object) -> None:
        """Set it, unless one that offloads is there already."""
        if isinstance(base.get_offloader(), base.NoopOffloader):
            plain(offloader)

    for role in ("runner.v1", "runner.v2"):
        replace_name(modules.module(role), "set_offloader", set_offloader)
    replace_name(modules.module("engine_core"), "drop_offloader", lambda _offloader: None)


def _read_pin_flag_once(modules: EngineModules) -> None:
    """The first engine's answer is every engine's."""
    answers: list[bool] = []
    for role in ("offloader.prefetch", "offloader.uva"):
        owner: Any = modules.module(role)
        plain = owner.should_pin_memory

        def should_pin_memory(plain: Callable[[], bool] = plain) -> bool:
            """Ask once, and remember."""
            if not answers:
                answers.append(plain())
            return answers[0]

        replace_name(owner, "should_pin_memory", should_pin_memory)


def _hooks_ask_the_process(modules: EngineModules) -> None:
    """Hooks look the offloader up when they run, and so find the engine's that started last."""
    owner: Any = modules.module("offloader.prefetch")
    get_offloader = modules.module("offloader.base").get_offloader

    def prefetching(self: Any, index: int, original: Forward) -> Forward:
        del self

        def forward(*args: Any, **kwargs: Any) -> Any:
            living = get_offloader()
            is_ring = isinstance(living, owner.PrefetchOffloader)
            if is_ring:
                living._wait_for_layer(index)
            output = original(*args, **kwargs)
            if is_ring:
                living._start_next(index)
            return output

        return forward

    replace_name(owner.PrefetchOffloader, "_prefetching", prefetching)


def _keep_host_copies(modules: EngineModules) -> None:
    """Something of the process still holds every host copy when its engine is gone."""
    kept: list[Any] = []
    module_offloader: Any = modules.module("offloader.module_offloader").ModuleOffloader
    uva: Any = modules.module("offloader.uva").UVAOffloader
    for owner, method in ((module_offloader, "drop"), (uva, "shutdown")):
        plain = getattr(owner, method)

        def leave(self: Any, plain: Callable[[Any], None] = plain) -> None:
            kept.extend(self.host_copies.values())
            plain(self)

        replace_name(owner, method, leave)


def _unless_pinned(offload: OffloadConfig) -> str | None:
    return None if offload.pin_memory else "the engine before does not pin either"


OFFLOADER_OUTLIVES_ENGINE = Fault(
    name="offloader-outlives-engine",
    summary="the global offloader survives its engine: the next one starts with that and its books",
    seen_in=("vllm#10477", "vllm#57834", "vllm#42074"),
    defect_class="H",
    killed_by=("effect", "memory"),
    blind="the first engine of a process",
    workload="engine-before",
    offloads={
        "uva": OffloadConfig(cpu_offload_gb=0.002),
        "uva-copy": OffloadConfig(cpu_offload_gb=0.002, uva=False),
    },
    before_start=_keep_first_offloader,
)

PIN_FLAG_OUTLIVES_ENGINE = Fault(
    name="pin-flag-outlives-engine",
    summary="the pin setting is read once in a process: a second engine gets the first one's",
    seen_in=("vllm#37672", "vllm#37482"),
    defect_class="I",
    killed_by=("effect",),
    blind="tokens; the first engine of a process, and a second one that asks for the same",
    workload="engine-before",
    only_if=_unless_pinned,
    before_start=_read_pin_flag_once,
)

ENGINE_BESIDE_SHARES_OFFLOADER = Fault(
    name="engine-beside-shares-offloader",
    summary="hooks look up the process's offloader when they run: a later engine's takes its place",
    seen_in=("vllm#57834",),
    defect_class="H",
    killed_by=("tokens", "integrity"),
    blind="one engine in the process; UVA, whose reads ask no offloader",
    modes=("prefetch",),
    workload="engine-beside",
    before_start=_hooks_ask_the_process,
)

SHUTDOWN_LEAKS_HOST_COPIES = Fault(
    name="shutdown-leaks-host-copies",
    summary="the host copies of an engine that was shut down stay allocated",
    seen_in=("vllm#10477", "vllm#42074"),
    defect_class="H",
    killed_by=("memory",),
    blind="everything while the engine lives",
    workload="generates",
    before_start=_keep_host_copies,
)
