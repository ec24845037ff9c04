"""Bytes in use, by the allocator's own account and the kernel's; marks of loading are handed in."""

from __future__ import annotations

from dataclasses import replace

from harness.core import MemoryTrace
from harness.engines.base import EngineView

from .drift import Drift
from .host_memory import read_host_memory


def read_memory(
    view: EngineView, drift: Drift, *, load_bytes: int, load_peak_bytes: int = 0
) -> MemoryTrace | None:
    """Memory now, with the device bytes in use, and their peak, when loading was done."""
    trace = drift.read(view.memory, None)
    if trace is None:
        return None
    return replace(
        trace,
        device_load_bytes=load_bytes,
        device_load_peak_bytes=load_peak_bytes,
        process=read_host_memory(),
    )
