"""The buffer pool over one forward pass: which copy filled each slot, and who read it, in order.

A pass starts where a site reads the pool that has read it before; no more than two are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.core import SlotEvent

from .ranges import Access

MAX_ACCESSES = 20_000
"""Accesses kept of one pass; a longer one is not shown."""


class PoolAccess(NamedTuple):
    """One tensor of the pool, touched by one piece of work."""

    access: Access
    address: int
    seq: int
    is_race: bool


@dataclass(slots=True)
class _Pass:
    """Accesses from a pass's first read to the next pass's first read."""

    before: list[PoolAccess] = field(default_factory=list)
    """The copies that filled each address before the pass."""
    accesses: list[PoolAccess] = field(default_factory=list)
    sites: dict[str, int] = field(default_factory=dict)
    """Site -> place of the work that read the pool there."""


class PoolTimeline:
    """Accesses of the current pass and of the one before it."""

    def __init__(self) -> None:
        self._last, self._now = _Pass(), _Pass()
        self._filled: dict[int, PoolAccess] = {}
        """Address -> its last copy."""

    def add(self, access: Access, address: int, *, seq: int, is_race: bool) -> None:
        """Note one access to the pool; only copies that write and compute that reads count."""
        if access.is_write != (access.copy_idx is not None):
            return
        if not access.is_write and self._now.sites.get(access.site, seq) != seq:
            self._last, self._now = self._now, _Pass(before=list(self._filled.values()))
        item = PoolAccess(access, address, seq, is_race)
        if access.is_write:
            self._filled[address] = item
        else:
            self._now.sites[access.site] = seq
        if len(self._now.accesses) <= MAX_ACCESSES:
            self._now.accesses.append(item)

    def last_complete(self) -> tuple[PoolAccess, ...]:
        """Accesses of the last pass that read at every site that the one before it did."""
        whole = self._now if self._now.sites.keys() >= self._last.sites.keys() else self._last
        if not whole.sites or len(whole.accesses) > MAX_ACCESSES:
            return ()
        return (*whole.before, *whole.accesses)


def read_timeline(
    accesses: Sequence[PoolAccess],
    slots: Mapping[int, int],
    layer_of: Callable[[Access], int | None],
) -> tuple[SlotEvent, ...]:
    """One event for each copy of a module, and each read by one, in host order.

    Args:
        accesses: what was seen, from `PoolTimeline.last_complete`.
        slots: address of each buffer -> its slot.
        layer_of: the layer that reads, or whose bytes are copied; None leaves the access out.
    """
    events: list[SlotEvent] = []
    newest: dict[int, int] = {}
    """Slot -> place of its last event."""
    touched: dict[int, set[int]] = {}
    """Slot -> addresses that its last event has copied."""
    for item in sorted(accesses, key=lambda a: a.seq):
        slot, layer = slots.get(item.address), layer_of(item.access)
        if slot is None or layer is None:
            continue
        is_copy = item.access.is_write
        event = SlotEvent(
            kind="copy" if is_copy else "read",
            seq=item.seq,
            slot_idx=slot,
            layer_idx=layer,
            stream=item.access.stream_name,
            is_race=item.is_race,
        )
        last = events[newest[slot]] if slot in newest else None
        is_same = last is not None and (last.kind, last.layer_idx) == (event.kind, layer)
        if last is not None and is_same and not (is_copy and item.address in touched[slot]):
            events[newest[slot]] = replace(last, is_race=last.is_race or item.is_race)
        else:
            newest[slot], touched[slot] = len(events), set()
            events.append(event)
        touched[slot].add(item.address)
    return tuple(events)
