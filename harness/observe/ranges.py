"""Accesses to the byte ranges of one allocation, and which earlier ones a new one conflicts with.

Kept for each range: its last writer and, for each stream, its last reader since; a write forgets
every range that it covers. So memory is bounded by the ranges in use times the streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True, kw_only=True)
class Access:
    """One read or write by one piece of work; never changed, and not frozen as so many are made."""

    site: str
    stream: int
    stream_name: str
    tick: int
    """Place in its stream, from 1."""
    copy_idx: int | None
    """Number of the copy, from 1; None for compute."""
    source: int | None = None
    """Address that a copy reads from."""
    is_write: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two accesses to the same bytes, at least one a write, with no order between them."""

    first: Access
    second: Access

    @property
    def kind(self) -> Literal["read-write", "write-read", "write-write"]:
        """What the first did, then what the second did."""
        if not self.first.is_write:
            return "read-write"
        return "write-write" if self.second.is_write else "write-read"


@dataclass(slots=True, kw_only=True)
class _Span:
    start: int
    end: int
    writer: Access | None = None
    readers: dict[int, Access] = field(default_factory=dict)


class History:
    """The accesses to one allocation that a later one could conflict with."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], _Span] = {}

    def add(
        self, start: int, end: int, access: Access, clock: dict[int, int]
    ) -> tuple[list[Conflict], int]:
        """Check an access against those before it, then remember it.

        Args:
            start: first byte, from the start of the allocation.
            end: behind the last byte; an empty range touches nothing.
            access: what is done to the bytes.
            clock: what its work knows to be done.

        Returns:
            The conflicts without an order, and the number of pairs that were checked.
        """
        if start >= end:
            return [], 0
        conflicts, num_checked = [], 0
        for span in self._spans.values():
            if span.start < end and start < span.end:
                for earlier in _opponents(span, access):
                    if earlier.tick == access.tick and earlier.stream == access.stream:
                        continue  # one piece of work
                    num_checked += 1
                    if clock.get(earlier.stream, 0) < earlier.tick:
                        conflicts.append(Conflict(first=earlier, second=access))
        self._remember(start, end, access)
        return conflicts, num_checked

    def _remember(self, start: int, end: int, access: Access) -> None:
        if access.is_write:
            if len(self._spans) == 1 and (start, end) in self._spans:
                span = self._spans[start, end]
                span.writer = access
                span.readers.clear()
                return
            covered = [k for k, s in self._spans.items() if start <= s.start and s.end <= end]
            for key in covered:
                del self._spans[key]
            self._spans[start, end] = _Span(start=start, end=end, writer=access)
            return
        key = (start, end)
        if key not in self._spans:
            self._spans[key] = _Span(start=start, end=end)
        self._spans[key].readers[access.stream] = access


def _opponents(span: _Span, access: Access) -> tuple[Access, ...]:
    """Earlier accesses that `access` must come after; readers only matter to a writer."""
    readers = span.readers.values() if access.is_write else ()
    return (*readers,) if span.writer is None else (span.writer, *readers)
