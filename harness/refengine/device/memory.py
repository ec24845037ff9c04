"""Byte-exact accounting of memory by space and kind; knows nothing of tensors or streams."""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Literal

Space = Literal["device", "host", "pinned"]
SPACES: tuple[Space, ...] = ("device", "host", "pinned")


class OutOfDeviceMemoryError(RuntimeError):
    """The device's capacity cannot hold an allocation; the text says what holds it now."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One live allocation; ends when its owner object dies."""

    address: int
    num_bytes: int
    space: Space
    kind: str
    owner: weakref.ref[Any]


class Ledger:
    """Counts live bytes by space and kind, and the peak of each space.

    A dying owner only leaves a note (its callback may come at any point of any thread); notes are
    worked off whenever the ledger is asked, so a sum is never updated halfway.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        if capacity_bytes is not None and capacity_bytes < 0:
            raise ValueError(f"capacity_bytes={capacity_bytes!r} must be >= 0, or None: no limit")
        self.capacity_bytes = capacity_bytes
        self._live: dict[int, Allocation] = {}
        self._freed: deque[int] = deque()
        self._current: dict[Space, int] = dict.fromkeys(SPACES, 0)
        self._peak: dict[Space, int] = dict.fromkeys(SPACES, 0)
        self._by_kind: dict[Space, dict[str, int]] = {s: defaultdict(int) for s in SPACES}

    def add(self, owner: Any, *, address: int, num_bytes: int, space: Space, kind: str) -> None:
        """Enter an allocation that lives as long as `owner` (any weakly referable object)."""
        self._settle()
        freed = self._freed

        def note_death(_: weakref.ref[Any]) -> None:
            freed.append(address)

        self._live[address] = Allocation(
            address, num_bytes, space, kind, weakref.ref(owner, note_death)
        )
        self._by_kind[space][kind] += num_bytes
        current = self._current[space] = self._current[space] + num_bytes
        self._peak[space] = max(self._peak[space], current)

    def find(self, address: int) -> Allocation | None:
        """Return the live allocation that starts at `address`."""
        self._settle()
        return self._live.get(address)

    def has_room(self, num_bytes: int, space: Space) -> bool:
        """Tell whether `num_bytes` more fit; only the device space has a limit."""
        if space != "device" or self.capacity_bytes is None:
            return True
        self._settle()
        return self._current["device"] + num_bytes <= self.capacity_bytes

    def out_of_memory(self, num_bytes: int, kind: str) -> OutOfDeviceMemoryError:
        """Build the error for an allocation that does not fit."""
        self._settle()
        held = ", ".join(f"{k}={n}" for k, n in sorted(self._by_kind["device"].items()) if n)
        return OutOfDeviceMemoryError(
            f"out of device memory: asked for {num_bytes} bytes (kind={kind!r}), in use "
            f"{self._current['device']} of capacity {self.capacity_bytes} bytes "
            f"({held or 'nothing'}); offload more weights, or give the device more capacity"
        )

    def stats(self) -> dict[str, Any]:
        """Return `{space: {current, peak, by_kind}}` in bytes, and `capacity`."""
        self._settle()
        report: dict[str, Any] = {
            space: {
                "current": self._current[space],
                "peak": self._peak[space],
                "by_kind": {k: n for k, n in sorted(self._by_kind[space].items()) if n},
            }
            for space in SPACES
        }
        report["capacity"] = self.capacity_bytes
        return report

    def reset_peak(self) -> None:
        """Let every peak start again from what is in use now."""
        self._settle()
        self._peak = dict(self._current)

    def _settle(self) -> None:
        while self._freed:
            allocation = self._live.pop(self._freed.popleft())
            self._current[allocation.space] -= allocation.num_bytes
            self._by_kind[allocation.space][allocation.kind] -= allocation.num_bytes
