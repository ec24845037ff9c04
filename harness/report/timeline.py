"""Which layer each slot of the buffer pool held over one step: copied when, and read when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core import Run, SlotEvent

from .words import count, listing

LEFT, PITCH, BOX, ROW = 52, 72, 60, 48
"""Pixels: room for the slots' names, from one event to the next, a box, from slot to slot."""
MAX_TOLD = 3
"""Wrong reads told one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One box of the drawing: a copy into a slot, or a read of it."""

    kind: str
    """`copy` or `read`."""
    label: str
    x: int
    y: int
    is_wrong: bool
    """A read of another layer's bytes, or the copy that put them there; or one out of order."""
    note: str
    """What is wrong with it, under the box."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch of time in which a slot held one layer."""

    x: int
    y: int
    width: int
    is_wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """All that is shown of the slots over one step."""

    slots: tuple[tuple[str, int], ...]
    """Name and height of each row."""
    marks: tuple[Mark, ...]
    bands: tuple[Band, ...]
    step_x: int
    """Where the step begins; what is left of it was copied before."""
    width: int
    height: int
    sentence: str
    has_wrong: bool


def view_timeline(target: Run | None) -> TimelineView | None:
    """Build the drawing from the target's recording; None without one."""
    if target is None or target.probe is None or target.probe.ordering is None:
        return None
    events = _step(target.probe.ordering.timeline)
    first = next((n for n, event in enumerate(events) if event.kind == "read"), None)
    if first is None:
        return None
    holders = _holders(events)
    wrong = {n: holder for n, holder in holders.items() if _is_wrong(events, n, holder)}
    slots = sorted({event.slot_idx for event in events})
    rows = {slot: n * ROW for n, slot in enumerate(slots)}
    places = [LEFT + max(0, n - first + 1) * PITCH for n in range(len(events))]
    width = places[-1] + PITCH
    return TimelineView(
        slots=tuple((f"slot {slot}", rows[slot]) for slot in slots),
        marks=tuple(
            _mark(n, events, wrong, x=x, y=rows[event.slot_idx])
            for n, (event, x) in enumerate(zip(events, places, strict=True))
        ),
        bands=_bands(events, wrong, places, rows, width),
        step_x=LEFT + PITCH - (PITCH - BOX) // 2,
        width=width,
        height=len(slots) * ROW,
        sentence=_sentence(events, holders, wrong),
        has_wrong=bool(wrong) or any(event.is_race for event in events),
    )


def _step(timeline: Sequence[SlotEvent]) -> list[SlotEvent]:
    """Events in order; of the copies before the first read, each slot's last one."""
    events = sorted(timeline, key=lambda e: e.seq)
    start = next((e.seq for e in events if e.kind == "read"), 0)
    before = {e.slot_idx: e for e in events if e.seq < start}
    kept = sorted(before.values(), key=lambda e: e.seq)
    return [*kept, *(e for e in events if e.seq >= start)]


def _holders(events: Sequence[SlotEvent]) -> dict[int, int]:
    """Place of each read -> place of the last copy into its slot before it."""
    filled: dict[int, int] = {}
    holders: dict[int, int] = {}
    for n, event in enumerate(events):
        if event.kind == "copy":
            filled[event.slot_idx] = n
        elif event.slot_idx in filled:
            holders[n] = filled[event.slot_idx]
    return holders


def _is_wrong(events: Sequence[SlotEvent], read: int, holder: int) -> bool:
    return events[holder].layer_idx != events[read].layer_idx


def _mark(n: int, events: Sequence[SlotEvent], wrong: dict[int, int], *, x: int, y: int) -> Mark:
    event = events[n]
    note = "unordered" if event.is_race else ""
    title = f"layer {event.layer_idx} reads slot {event.slot_idx}"
    if event.kind == "copy":
        title = f"layer {event.layer_idx} is copied into slot {event.slot_idx}"
    if n in wrong:
        held = events[wrong[n]].layer_idx
        note, title = f"holds {held}", f"{title}, which holds layer {held}"
    race = ", not in order with an earlier access" if event.is_race else ""
    return Mark(
        kind=event.kind,
        label=f"{event.kind} {event.layer_idx}",
        x=x,
        y=y,
        is_wrong=bool(note) or n in wrong.values(),
        note=note,
        title=f"{title}, on stream {event.stream}{race}",
    )


def _bands(
    events: Sequence[SlotEvent],
    wrong: dict[int, int],
    places: Sequence[int],
    rows: dict[int, int],
    width: int,
) -> tuple[Band, ...]:
    """From each copy to the next one into the same slot, or to the end."""
    bands, ends = [], dict.fromkeys(rows, width)
    for n in reversed(range(len(events))):
        event, x = events[n], places[n]
        if event.kind == "copy" and x < ends[event.slot_idx]:
            y = rows[event.slot_idx]
            wide = ends[event.slot_idx] - x
            bands.append(Band(x=x, y=y, width=wide, is_wrong=n in wrong.values()))
            ends[event.slot_idx] = x
    return tuple(bands)


def _sentence(events: Sequence[SlotEvent], holders: dict[int, int], wrong: dict[int, int]) -> str:
    reads = [n for n, event in enumerate(events) if event.kind == "read"]
    told = [
        f"layer {events[read].layer_idx} read slot {events[read].slot_idx}"
        f" while it held layer {events[holder].layer_idx}"
        for read, holder in wrong.items()
    ]
    unfilled = len(set(reads) - set(holders))
    races = sum(event.is_race for event in events)
    text = f"In the last step {listing(told, MAX_TOLD)}."
    if not told:
        right = "the read" if len(reads) == 1 else f"each of {len(reads)} reads"
        text = f"In the last step {right} found its own layer in the slot."
    if unfilled:
        text = f"{text if told else ''} No copy was seen before {count(unfilled, 'read')}.".lstrip()
    if races:
        those = count(races, "box is", "boxes are")
        text += f" Drawn as queued: {those} not in order with what came before."
    return text
