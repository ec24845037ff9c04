"""Byte-exact accounting of memory by space and kind; knows nothing of tensors or streams."""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

Space = Literal["device", "host", "pinned"]
SPACES: tuple[Space, ...] = ("device", "host", "pinned")
PINNED_GRANULARITIES = ("exact", "power_of_two")
"""How pinned allocations are rounded up; torch's own host allocator rounds to powers of two."""


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
    taken_bytes: int
    """What the allocator took for them: rounded up where it rounds."""


class Ledger:
    """Counts live bytes by space and kind, and the peak of each space.

    In unified memory what the device can reach, pinned or viewed, counts against its capacity too.
    A dying owner only leaves a note (its callback may come at any point of any thread); notes are
    worked off whenever the ledger is asked, so a sum is never updated halfway.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        is_unified: bool = False,
        pinned_granularity: str = "exact",
    ) -> None:
        if capacity_bytes is not None and capacity_bytes < 0:
            raise ValueError(f"capacity_bytes={capacity_bytes!r} must be >= 0, or None: no limit")
        if pinned_granularity not in PINNED_GRANULARITIES:
            allowed = ", ".join(PINNED_GRANULARITIES)
            raise ValueError(f"pinned_granularity={pinned_granularity!r} must be one of {allowed}")
        self.capacity_bytes = capacity_bytes
        self.is_unified = is_unified
        self.pinned_granularity = pinned_granularity
        self._pinned_taken = 0
        self._viewed: dict[int, int] = {}
        self._live: dict[int, Allocation] = {}
        self._away: dict[int, Allocation] = {}
        """Those given back while their owner lives, by where they were; others may be there now."""
        self._freed: deque[tuple[int, weakref.ref[Any]]] = deque()
        self._current: dict[Space, int] = dict.fromkeys(SPACES, 0)
        self._peak: dict[Space, int] = dict.fromkeys(SPACES, 0)
        self._by_kind: dict[Space, dict[str, int]] = {s: defaultdict(int) for s in SPACES}

    def add(self, owner: Any, *, address: int, num_bytes: int, space: Space, kind: str) -> None:
        """Enter an allocation that lives as long as `owner` (any weakly referable object)."""
        self._settle()
        freed = self._freed

        def note_death(ref: weakref.ref[Any]) -> None:
            freed.append((address, ref))

        taken = self._round_up(num_bytes, space)
        allocation = self._live[address] = Allocation(
            address, num_bytes, space, kind, weakref.ref(owner, note_death), taken
        )
        self._count(allocation, 1)

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that starts at `address`, or started there when it was released."""
        self._settle()
        return self._live.get(address) or self._away.get(address)

    def living(self, kinds: Collection[str]) -> list[Allocation]:
        """Return the live allocations of some kinds, oldest first."""
        self._settle()
        return [a for a in self._live.values() if a.kind in kinds]

    def release(self, allocation: Allocation) -> None:
        """Count an allocation no longer: its memory was given back, though its owner lives."""
        self._settle()
        self._away[allocation.address] = self._live.pop(allocation.address)
        self._count(allocation, -1)

    def reclaim(self, allocation: Allocation, address: int) -> None:
        """Count a released allocation again, which is at `address` now."""
        self._settle()
        del self._away[allocation.address]
        self.add(
            allocation.owner(),
            address=address,
            num_bytes=allocation.num_bytes,
            space=allocation.space,
            kind=allocation.kind,
        )

    def has_room(self, num_bytes: int, space: Space) -> bool:
        """Tell whether `num_bytes` more fit; only what counts against the device has a limit."""
        is_counted = space == "device" or (self.is_unified and space == "pinned")
        return not is_counted or self._fits(self._round_up(num_bytes, space))

    def note_view(self, allocation: Allocation) -> None:
        """Count pageable host bytes as reached by the device, where that takes from its capacity.

        Raises:
            OutOfDeviceMemoryError: they do not fit.
        """
        if not self.is_unified or allocation.space != "host":
            return
        if allocation.address not in self._viewed:
            if not self._fits(allocation.num_bytes):
                raise self.out_of_memory(allocation.num_bytes, allocation.kind, "host")
            self._viewed[allocation.address] = allocation.num_bytes

    def out_of_memory(
        self, num_bytes: int, kind: str, space: Space = "device"
    ) -> OutOfDeviceMemoryError:
        """Build the error for an allocation, or a view, that does not fit."""
        counted = self._counted()
        parts = {**self._by_kind["device"], **self._shared()}
        held = ", ".join(f"{name}={num}" for name, num in sorted(parts.items()) if num)
        where = "" if space == "device" else f", space={space!r}"
        return OutOfDeviceMemoryError(
            f"out of device memory: asked for {num_bytes} bytes (kind={kind!r}{where}), in use "
            f"{counted} of capacity {self.capacity_bytes} bytes ({held or 'nothing'}); "
            f"{self._advice(space)}"
        )

    def stats(self) -> dict[str, Any]:
        """Return bytes as `{space: {current, peak, by_kind}}`, `capacity`, and what it counts."""
        self._settle()
        report: dict[str, Any] = {
            space: {
                "current": self._current[space],
                "peak": self._peak[space],
                "by_kind": {k: n for k, n in sorted(self._by_kind[space].items()) if n},
            }
            for space in SPACES
        }
        report["pinned"]["taken"] = self._pinned_taken
        report["capacity"] = self.capacity_bytes
        report["counted"] = self._counted()
        return report

    def reset_peak(self) -> None:
        """Let every peak start again from what is in use now."""
        self._settle()
        self._peak = dict(self._current)

    def _settle(self) -> None:
        while self._freed:
            address, ref = self._freed.popleft()
            for held in (self._live, self._away):
                allocation = held.get(address)
                if allocation is None or allocation.owner is not ref:
                    continue  # it was released, and came back elsewhere
                del held[address]
                if held is self._live:
                    self._count(allocation, -1)
                    self._viewed.pop(address, None)

    def _count(self, allocation: Allocation, sign: int) -> None:
        space, num_bytes = allocation.space, sign * allocation.num_bytes
        self._by_kind[space][allocation.kind] += num_bytes
        self._pinned_taken += sign * allocation.taken_bytes if space == "pinned" else 0
        current = self._current[space] = self._current[space] + num_bytes
        self._peak[space] = max(self._peak[space], current)

    def _round_up(self, num_bytes: int, space: Space) -> int:
        if space != "pinned" or self.pinned_granularity == "exact" or not num_bytes:
            return num_bytes
        return 1 << (num_bytes - 1).bit_length()

    def _fits(self, num_bytes: int) -> bool:
        return self.capacity_bytes is None or self._counted() + num_bytes <= self.capacity_bytes

    def _counted(self) -> int:
        """Bytes that count against the device's capacity."""
        self._settle()
        return self._current["device"] + sum(self._shared().values())

    def _shared(self) -> dict[str, int]:
        """Host bytes that count against the device's capacity, by why they do."""
        if not self.is_unified:
            return {}
        return {"pinned": self._pinned_taken, "viewed host": sum(self._viewed.values())}

    def _advice(self, space: Space) -> str:
        if self.is_unified and (space == "host" or self._viewed):
            return (
                "on unified memory host bytes that the device views count against it; copy on "
                "forward (uva: false, VLLM_WEIGHT_OFFLOADING_DISABLE_UVA=1), or add capacity"
            )
        if self.is_unified and (space == "pinned" or self._pinned_taken):
            return (
                "on unified memory pinned host bytes count against the device; do not pin "
                "(pin_memory: false, VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY=1), or add capacity"
            )
        return "offload more weights, or give the device more capacity"
