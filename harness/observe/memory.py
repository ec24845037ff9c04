"""Bytes in use, by the allocator's own account; the mark taken after loading is handed in."""

from __future__ import annotations

from dataclasses import replace

from harness.core import MemoryTrace
from harness.engines.base import EngineView

from .drift import Drift


def read_memory(view: EngineView, drift: Drift, *, load_bytes: int) -> MemoryTrace | None:
    """Memory now, with the device bytes that were in use right after loading."""
    trace = drift.read(view.memory, None)
    return None if trace is None else replace(trace, device_load_bytes=load_bytes)
