"""Faults of ordering: a copy and its readers no longer wait for each other."""

from __future__ import annotations

from typing import Any

from harness.engines.base import EngineModules

from .base import Fault
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


NO_WAIT_FOR_COPY = Fault(
    name="no-wait-for-copy",
    summary="a module computes without waiting for the copy of its weights",
    seen_in=("diffusers#13502", "pytorch#180666"),
    defect_class="B",
    killed_by=("ordering", "integrity"),
    blind="tokens and integrity where copies are fast (in_order); ordering sees it everywhere",
    modes=("prefetch",),
    schedules=("in_order", "copy_late"),
    before_start=_drop_copy_wait,
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
    before_start=_drop_reader_wait,
)

WRONG_REFILL_TARGET = Fault(
    name="wrong-refill-target",
    summary="at the end of the ring a slot is refilled for a module that owns another slot",
    seen_in=("vllm#54975",),
    defect_class="C",
    killed_by=("placement", "integrity", "tokens"),
    blind="one slot, and rings that prefetch_step divides: the target is the right one there",
    modes=("prefetch",),
    before_start=_wrap_around_ring,
)
