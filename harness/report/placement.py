"""Where each decoder layer's bytes were found, beside where they had to be."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.core import Case, ParamPlacement, Run

from .words import count, exact_bytes, format_bytes

SPACES: tuple[tuple[str, str], ...] = (
    ("device", "device"),
    ("uva", "host, seen by the device (UVA)"),
    ("pinned", "pinned host"),
    ("host", "pageable host"),
    ("disk", "disk"),
    ("meta", "no bytes (meta)"),
)
"""Class and name of each place, in drawing order from the ground up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes of one layer in one place."""

    space: str
    y_percent: float
    height_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One decoder layer."""

    label: str
    x_percent: float
    width_percent: float
    title: str
    blocks: tuple[Block, ...]
    slot: str
    is_wrong: bool
    """Found offloaded other than expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """All that is shown of where the weights were."""

    columns: tuple[Column, ...]
    legend: tuple[tuple[str, str, str], ...]
    """Class, name and total bytes of each place in use."""
    sentence: str
    wrong: tuple[str, ...]
    """Names found elsewhere than expected, at most six."""
    outside: str
    """Bytes outside the decoder layers (embedding, head), which the drawing leaves out."""
    has_slots: bool
    label_every: int


def view_placement(case: Case, target: Run | None) -> PlacementView | None:
    """Build the drawing from the target's probe; None without one."""
    if target is None or target.probe is None or not target.probe.params:
        return None
    params = target.probe.params
    layers: dict[int, list[ParamPlacement]] = defaultdict(list)
    for param in params:
        if param.layer_idx is not None:
            layers[param.layer_idx].append(param)
    wrong = _wrong(case, params)
    wide = 100 / max(1, len(layers))
    top = max((sum(p.num_bytes for p in ps) for ps in layers.values()), default=1)
    columns = tuple(
        _column(idx, layers[idx], x=n * wide, wide=wide, top=max(1, top), wrong=wrong)
        for n, idx in enumerate(sorted(layers))
    )
    return PlacementView(
        columns=columns,
        legend=_legend(params),
        sentence=_sentence(case, params),
        wrong=tuple(sorted(wrong))[:6],
        outside=format_bytes(sum(p.num_bytes for p in params if p.layer_idx is None)),
        has_slots=any(c.slot for c in columns),
        label_every=max(1, -(-len(columns) // 24)),
    )


def _wrong(case: Case, params: tuple[ParamPlacement, ...]) -> set[str]:
    """Names whose place differs from the expectation."""
    found = {p.name for p in params if p.is_offloaded}
    return found ^ set(case.expected.offloaded_params)


def _space(param: ParamPlacement) -> str:
    return "uva" if param.is_uva else param.space


def _column(
    idx: int, params: list[ParamPlacement], *, x: float, wide: float, top: int, wrong: set[str]
) -> Column:
    totals: dict[str, int] = defaultdict(int)
    for param in params:
        totals[_space(param)] += param.num_bytes
    blocks, ground = [], 100.0
    for space, _ in SPACES:
        if totals.get(space):
            height = 100 * totals[space] / top
            ground -= height
            blocks.append(
                Block(space=space, y_percent=round(ground, 2), height_percent=round(height, 2))
            )
    names = dict(SPACES)
    parts = ", ".join(f"{format_bytes(totals[s])} {names[s]}" for s, _ in SPACES if totals.get(s))
    slots = sorted({p.slot_idx for p in params if p.slot_idx is not None})
    is_wrong = any(p.name in wrong for p in params)
    title = f"layer {idx}: {parts}" + (f"; slot {slots[0]}" if len(slots) == 1 else "")
    return Column(
        label=str(idx),
        x_percent=round(x + wide * 0.1, 3),
        width_percent=round(wide * 0.8, 3),
        title=title + ("; not as expected" if is_wrong else ""),
        blocks=tuple(blocks),
        slot="/".join(str(s) for s in slots),
        is_wrong=is_wrong,
    )


def _legend(params: tuple[ParamPlacement, ...]) -> tuple[tuple[str, str, str], ...]:
    totals: dict[str, int] = defaultdict(int)
    for param in params:
        totals[_space(param)] += param.num_bytes
    return tuple((s, name, format_bytes(totals[s])) for s, name in SPACES if totals.get(s))


def _sentence(case: Case, params: tuple[ParamPlacement, ...]) -> str:
    off = [p for p in params if p.is_offloaded]
    found, wanted = sum(p.num_bytes for p in off), case.expected.offloaded_bytes
    text = f"{count(len(off), 'parameter')} offloaded, {exact_bytes(found)}"
    if found == wanted and not _wrong(case, params):
        return f"{text}: as computed from shapes, to the byte." if wanted else f"{text}, as asked."
    expected = f"{count(len(case.expected.offloaded_params), 'parameter')}, {exact_bytes(wanted)}"
    return f"{text}; computed from shapes: {expected}."
