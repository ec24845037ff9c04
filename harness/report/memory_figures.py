"""Every figure known of memory, side by side: device, pinned, process, and what was left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.core import HostMemory, MemoryTrace

from .words import exact_bytes, format_bytes

Pair = tuple[MemoryTrace, MemoryTrace]
Leftovers = tuple[MemoryTrace | None, MemoryTrace | None]
UNKNOWN = "not known"

_ALLOCATED: tuple[tuple[str, Callable[[MemoryTrace], int | None]], ...] = (
    ("device, now", lambda t: t.device_bytes),
    ("device, peak", lambda t: t.device_peak_bytes),
    ("device, capacity", lambda t: t.device_capacity_bytes),
    ("device, after loading", lambda t: t.device_load_bytes or None),
    ("device, peak of loading", lambda t: t.device_load_peak_bytes or None),
    ("pinned, asked for", lambda t: t.pinned_bytes),
    ("pinned, allocated", lambda t: t.pinned_allocated_bytes),
    ("pageable, for weights", lambda t: t.host_bytes),
)
_RESIDENT: tuple[tuple[str, Callable[[HostMemory], int]], ...] = (
    ("worker, RSS", lambda p: p.rss_bytes),
    ("worker, PSS", lambda p: p.pss_bytes),
    ("process group, RSS", lambda p: p.group_rss_bytes),
    ("process group, PSS", lambda p: p.group_pss_bytes),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One figure of both sides."""

    name: str
    baseline: str
    target: str


def list_figures(traces: Pair, leftovers: Leftovers = (None, None)) -> tuple[FigureRow, ...]:
    """The figures known of either side, baseline first.

    Args:
        traces: memory as the probes read it.
        leftovers: what each engine held once it was shut down.
    """
    rows = [_row(name, [read(t) for t in traces], exact_bytes) for name, read in _ALLOCATED]
    for name, look in _RESIDENT:
        sizes = [None if t.process is None else look(t.process) for t in traces]
        rows.append(_row(name, sizes, format_bytes))
    rows.append(_texts("left after shutdown", [_left(each) for each in leftovers]))
    return tuple(row for row in rows if row is not None)


def _row(name: str, sizes: list[int | None], show: Callable[[int], str]) -> FigureRow | None:
    return _texts(name, [None if size is None else show(size) for size in sizes])


def _texts(name: str, texts: list[str | None]) -> FigureRow | None:
    """None where neither side is known."""
    if texts == [None, None]:
        return None
    baseline, target = (text or UNKNOWN for text in texts)
    return FigureRow(name=name, baseline=baseline, target=target)


def _left(trace: MemoryTrace | None) -> str | None:
    if trace is None:
        return None
    parts = (
        ("device", trace.device_bytes),
        ("pinned", trace.pinned_bytes),
        ("pageable", trace.host_bytes),
    )
    return ", ".join(f"{exact_bytes(size)} {name}" for name, size in parts if size) or "nothing"
