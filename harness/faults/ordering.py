"""Faults of ordering: a copy and its readers no longer wait for each other."""

from __future__ import annotations

from typing import Any

from harness.core import OffloadConfig
from harness.core.engine_names import VLLM
from harness.engines.base import EngineModules

from .base import WITH_VLLM, Fault
from .patch import replace_name


def _wrap_around_ring(modules: EngineModules) -> None:
    def next_index(index: int, prefetch_step: int, num_modules: int) -> int:
        return (index + prefetch_step) % num_modules

    owner: Any = modules.module("offloader.prefetch")
    name = "_get_next_prefetch_index"
    replace_name(owner.PrefetchOffloader, name, staticmethod(next_index))


def _drop_method(modules: EngineModules, name: str) -> None:
    def no_wait(self: object) -> None:
        """Wait for nothing."""
        del self

    owner: Any = modules.module("offloader.module_offloader")
    replace_name(owner.ModuleOffloader, name, no_wait)


def _drop_copy_wait(modules: EngineModules) -> None:
    _drop_method(modules, "_wait_for_copy")


def _drop_reader_wait(modules: EngineModules) -> None:
    _drop_method(modules, "_wait_for_reader")


def _drop_copy_wait_in_vllm(modules: EngineModules) -> None:
    def no_wait(self: object, layer_idx: int) -> None:
        """Wait for nothing."""
        del self, layer_idx

    owner: Any = modules.module("offloader.prefetch")
    replace_name(owner.PrefetchOffloader, "_wait_for_layer", no_wait)


def _drop_reader_wait_in_vllm(modules: EngineModules) -> None:
    owner: Any = modules.module("offloader.prefetch")._ModuleOffloader
    plain = owner.start_onload_to_static

    def start_onload(self: Any) -> Any:
        """Start the copy with its stream's waits taken out."""
        self.copy_stream.wait_event = self.copy_stream.wait_stream = lambda *_: None
        try:
            return plain(self)
        finally:
            del self.copy_stream.wait_event, self.copy_stream.wait_stream

    replace_name(owner, "start_onload_to_static", start_onload)


def _wrap_around_ring_in_vllm(modules: EngineModules) -> None:
    def next_index(index: int, prefetch_step: int, module_count: int) -> int:
        return (index + prefetch_step) % module_count

    replace_name(modules.module("offloader.prefetch"), "_get_next_prefetch_index", next_index)


WITH_STREAMS = ("reference", "vllm")
"""Engines whose copies and compute can overtake one another."""
DROPPED_REFILL = 2
"""Index of the offloaded module whose refills are dropped."""


def _drop_refill(modules: EngineModules) -> None:
    owner: Any = modules.module("offloader.prefetch").PrefetchOffloader
    plain = owner._start_prefetch

    def start_prefetch(self: Any, layer_idx: int) -> Any:
        return None if layer_idx == DROPPED_REFILL else plain(self, layer_idx)

    replace_name(owner, "_start_prefetch", start_prefetch)


def _unless_refilled(offload: OffloadConfig) -> str | None:
    if offload.offload_prefetch_step > DROPPED_REFILL:
        return None
    return f"module {DROPPED_REFILL} must be filled once before its refills are dropped: step > 2"


NO_WAIT_FOR_COPY = Fault(
    name="no-wait-for-copy",
    summary="a module computes without waiting for the copy of its weights",
    seen_in=("diffusers#13502", "pytorch#180666"),
    defect_class="B",
    killed_by=("ordering", "integrity"),
    blind="tokens and integrity where copies are fast (in_order); ordering sees it everywhere",
    modes=("prefetch",),
    schedules=("in_order", "copy_late"),
    engines=WITH_STREAMS,
    before_start=_drop_copy_wait,
    in_vllm=_drop_copy_wait_in_vllm,
)

NO_WAIT_FOR_READER = Fault(
    name="no-wait-for-reader",
    summary="a copy into a slot does not wait for the module that still computes from it",
    seen_in=("vllm#47282",),
    defect_class="B",
    killed_by=("ordering", "integrity"),
    blind="tokens and integrity where compute is fast (in_order); ordering sees it everywhere",
    modes=("prefetch",),
    schedules=("in_order", "compute_late"),
    engines=WITH_STREAMS,
    before_start=_drop_reader_wait,
    in_vllm=_drop_reader_wait_in_vllm,
)

WRONG_REFILL_TARGET = Fault(
    name="wrong-refill-target",
    summary="at the end of the ring a slot is refilled for a module that owns another slot",
    seen_in=("vllm#54975",),
    defect_class="C",
    killed_by=("placement", "integrity", "tokens"),
    blind="one slot, and rings that prefetch_step divides: the target is the right one there",
    modes=("prefetch",),
    engines=WITH_VLLM,
    before_start=_wrap_around_ring,
    in_vllm=_wrap_around_ring_in_vllm,
)

REFILL_DROPPED = Fault(
    name="refill-dropped",
    summary="one module's slot is never refilled after its first use",
    defect_class="C",
    killed_by=("placement", "integrity", "tokens"),
    blind="rings in which nobody else uses that slot",
    engines=VLLM,
    modes=("prefetch",),
    only_if=_unless_refilled,
    before_start=_drop_refill,
)
