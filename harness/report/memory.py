"""Memory of the two sides: bars on one scale, by the allocator's own account, and all figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.core import CaseResult, Expectation, MemoryTrace, Run

from .memory_figures import FigureRow, list_figures
from .words import exact_bytes, format_bytes

_KINDS: tuple[tuple[str, str], ...] = (
    ("weights", "weights"),
    ("buffer_pool", "buffer pool"),
    ("kv_cache", "KV cache"),
    ("state", "state"),
    ("other", "other"),
    ("pinned", "pinned host"),
    ("host", "pageable host"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One stretch of a bar."""

    kind: str
    title: str
    x_percent: float
    width_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One side's bytes in one memory."""

    label: str
    total: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """All that is shown of memory."""

    bars: tuple[Bar, ...]
    legend: tuple[tuple[str, str], ...]
    sentence: str
    figures: tuple[FigureRow, ...] = ()


def view_memory(result: CaseResult, baseline: Run | None, target: Run | None) -> MemoryView | None:
    """Build the bars; None unless both sides were measured."""
    left, right = _trace(baseline), _trace(target)
    if left is None or right is None or baseline is None or target is None:
        return None
    amounts = [
        ("baseline, device", _device(left)),
        ("target, device", _device(right)),
        ("baseline, host", {"pinned": left.pinned_bytes, "host": left.host_bytes}),
        ("target, host", {"pinned": right.pinned_bytes, "host": right.host_bytes}),
    ]
    scale = max(1, *(sum(parts.values()) for _, parts in amounts))
    used = {kind for _, parts in amounts for kind, size in parts.items() if size}
    return MemoryView(
        bars=tuple(_bar(label, parts, scale) for label, parts in amounts),
        legend=tuple((kind, name) for kind, name in _KINDS if kind in used),
        sentence=_sentence(result, left, right),
        figures=list_figures((left, right), (baseline.leftover, target.leftover)),
    )


def _trace(run: Run | None) -> MemoryTrace | None:
    return run.probe.memory if run is not None and run.probe is not None else None


def _device(trace: MemoryTrace) -> dict[str, int]:
    """Device bytes by the kinds we draw; what no kind accounts for is `other`."""
    known = {kind for kind, _ in _KINDS[:4]}
    parts = {kind: size for kind, size in trace.by_kind.items() if kind in known}
    rest = trace.device_bytes - sum(parts.values())
    return {**parts, "other": max(0, rest)}


def _bar(label: str, parts: Mapping[str, int], scale: int) -> Bar:
    x, segments = 0.0, []
    for kind, name in _KINDS:
        if size := parts.get(kind, 0):
            width = 100 * size / scale
            segments.append(
                Segment(
                    kind=kind,
                    title=f"{label}: {name}, {exact_bytes(size)}",
                    x_percent=round(x, 3),
                    width_percent=round(width, 3),
                )
            )
            x += width
    return Bar(label=label, total=format_bytes(sum(parts.values())), segments=tuple(segments))


def _sentence(result: CaseResult, baseline: MemoryTrace, target: MemoryTrace) -> str:
    """What was saved and what had to be, as the judge measured it; else only when plain."""
    evidence = next((f.evidence for f in result.findings if f.judge == "memory"), {})
    saved, wanted = evidence.get("saved_bytes"), evidence.get("expected_saved_bytes")
    case = result.case
    if not isinstance(saved, int) or not isinstance(wanted, int):
        if set(case.baseline.differing_axes(case.target)) - {"offload", "faults"}:
            return ""
        saved = baseline.device_bytes - target.device_bytes
        wanted = _net(case.expected) - _net(case.expected_baseline)
    account = str(evidence.get("account", "device"))
    where = "on the device" if account == "device" else f"in {account}"
    text = f"After the last step the target holds {_difference(saved)} {where}"
    if saved == wanted:
        return f"{text}, as computed." if wanted else f"{text}, as asked."
    return f"{text}; computed: {_difference(wanted)}."


def _net(expected: Expectation) -> int:
    """Device bytes an expectation frees."""
    return expected.offloaded_bytes - expected.pool_bytes - expected.graph_bytes


def _difference(saved: int) -> str:
    if not saved:
        return "as many bytes"
    return f"{exact_bytes(abs(saved))} {'less' if saved > 0 else 'more'}"
