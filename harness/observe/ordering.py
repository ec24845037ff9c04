"""Happens-before: a vector clock for each stream and for the host, and every pair of accesses.

Sees only what the host queues, in host order, so it finds an order that is missing in one run,
and says the same whatever the device's schedule happened to be.

Rules: a stream runs in order; a record captures its stream's clock; a wait joins the clock of the
record before it in host order, and of an event never recorded nothing; a host wait joins the host's
clock, which every later launch joins; work waits for the work whose result is its argument.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.engines.base import POOL_KIND

from .ranges import Access, Conflict, History
from .timeline import PoolTimeline

if TYPE_CHECKING:
    import torch

Clock = dict[int, int]
"""Stream number -> how many pieces of its work are known to be done."""
MAX_CAUSES = 10_000
"""Distinct pairs of sites kept; what goes beyond is named in `not_observed`."""


@dataclass(slots=True, kw_only=True)
class RawRace:
    """The first of all races between the same two sites."""

    conflict: Conflict
    allocation: Any
    """The allocator's entry of the memory; it does not keep the memory alive."""
    address: int
    """Of the second access's first byte."""
    count: int = 1


@dataclass(slots=True, kw_only=True)
class _Memory:
    """One allocation, told from a later one at the same address by the allocator's own entry."""

    allocation: Any
    history: History = field(default_factory=History)


class OrderingRecorder:
    """An observer of a device.

    Args:
        allocation_of: The device's own look-up: tensor -> its allocation, None if not its own.
    """

    def __init__(self, allocation_of: Callable[[torch.Tensor], Any]) -> None:
        self.num_work = self.num_copies = self.num_checked = self.num_pool_checked = 0
        self.races: dict[tuple[str, ...], RawRace] = {}
        self.num_foreign = self.num_causes_dropped = 0
        self.timeline = PoolTimeline()
        self._allocation_of = allocation_of
        self._streams: dict[Any, int] = {}
        self._clocks: list[Clock] = []
        self._host: Clock = {}
        self._events: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()
        self._works: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()
        self._memory: dict[int, _Memory] = {}
        self._prune_at = 4096

    def on_launch(self, work: Any) -> None:
        """Give the work its place in time, and check each access against those before it."""
        stream = self._number(work.stream)
        clock = self._clocks[stream]
        _join(clock, self._host)
        for arg in work.args:
            if type(arg) is type(work) and arg.stream is not work.stream:
                _join(clock, self._works.get(arg, {}))
        clock[stream] += 1
        if not work.is_copy:  # a copy has no result that anything could take or wait for
            self._works[work] = dict(clock)
        self.num_work += 1
        copy_idx = self.num_copies if work.is_copy else None
        source = work.reads[0].data_ptr() if work.is_copy and work.reads else None
        for tensors, is_write in ((work.reads, False), (work.writes, True)):
            if not tensors:
                continue
            access = Access(
                site=work.site or f"work {work.seq}",
                stream=stream,
                stream_name=work.stream.name,
                tick=clock[stream],
                copy_idx=copy_idx,
                source=source,
                is_write=is_write,
            )
            for tensor in tensors:
                self._access(tensor, access, clock)

    def on_copy(self, work: Any) -> None:
        """A copy is work that reads its source and writes its destination."""
        self.num_copies += 1
        self.on_launch(work)

    def on_record(self, event: Any, stream: Any) -> None:
        """Capture the stream's clock; an earlier capture is forgotten."""
        self._events[event] = dict(self._clocks[self._number(stream)])

    def on_wait(self, stream: Any, event: Any) -> None:
        """Join what the event captured last, if it ever did."""
        if (captured := self._events.get(event)) is not None:
            _join(self._clocks[self._number(stream)], captured)

    def on_host_wait(self, target: Any) -> None:
        """Let everything launched from now on come after `target`."""
        if target is None:
            for clock in self._clocks:
                _join(self._host, clock)
        elif target in self._streams:
            _join(self._host, self._clocks[self._streams[target]])
        else:
            _join(self._host, self._works.get(target) or self._events.get(target) or {})

    def on_run(self, work: Any) -> None:
        """When work runs decides nothing here."""

    def _number(self, stream: Any) -> int:
        number = self._streams.get(stream)
        if number is None:
            number = self._streams[stream] = len(self._clocks)
            self._clocks.append({number: 0})
        return number

    def _access(self, tensor: torch.Tensor, access: Access, clock: Clock) -> None:
        allocation = self._allocation_of(tensor)
        if allocation is None:
            self.num_foreign += 1
            return
        memory = self._memory.get(allocation.address)
        if memory is None or memory.allocation is not allocation:
            self._prune()
            memory = self._memory[allocation.address] = _Memory(allocation=allocation)
        start = tensor.data_ptr() - allocation.address
        end = start + extent_bytes(tensor)
        conflicts, num_checked = memory.history.add(start, end, access, clock)
        self.num_checked += num_checked
        if allocation.kind == POOL_KIND:
            self.num_pool_checked += num_checked
            self.timeline.add(access, tensor.data_ptr(), seq=self.num_work, is_race=bool(conflicts))
        for conflict in conflicts:
            self._note(conflict, allocation, tensor.data_ptr())

    def _note(self, conflict: Conflict, allocation: Any, address: int) -> None:
        first, second = conflict.first, conflict.second
        streams = (first.stream_name, second.stream_name)
        key = (conflict.kind, first.site, second.site, *streams, allocation.kind)
        race = self.races.get(key)
        if race is not None:
            race.count += 1
        elif len(self.races) < MAX_CAUSES:
            self.races[key] = RawRace(conflict=conflict, allocation=allocation, address=address)
        else:
            self.num_causes_dropped += 1

    def _prune(self) -> None:
        """Forget memory that was freed, once in a while."""
        if len(self._memory) >= self._prune_at:
            living = {a: m for a, m in self._memory.items() if m.allocation.owner() is not None}
            self._memory = living
            self._prune_at = max(4096, 2 * len(living))


def _join(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        if clock.get(stream, 0) < tick:
            clock[stream] = tick


def extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one; gaps count as touched."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    steps: Iterable[tuple[int, int]] = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * tensor.itemsize
