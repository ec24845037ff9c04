"""Giving memory back while its tensors live, and taking it again: what sleep is made of.

The simulated device keeps the address and fills the bytes with NaN; hardware gives the storage
back to its allocator, and the tensors on it follow to where it is when it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .base import Device
from .memory import Allocation, Space

POISON_BYTE = 0xFF


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAway:
    """Memory that was given back."""

    allocation: Allocation
    content: torch.Tensor | None
    """Its bytes in host memory; None when they were discarded."""


def put_away(
    device: Device, kinds: Collection[str], *, keep: Collection[str] = (), spaces: Collection[Space]
) -> list[PutAway]:
    """Give back all memory of some kinds; nothing may be queued that uses it.

    Args:
        device: whose memory.
        kinds: what it is for.
        keep: kinds whose bytes are kept in host memory, accounted as the same kind.
        spaces: where; of hardware only `device`, as pinned memory is mapped for the device.
    """
    found = []
    for allocation in device.ledger.living(kinds):
        owner = allocation.owner()
        is_simulated = isinstance(owner, np.ndarray)
        if owner is None or not allocation.num_bytes or allocation.space not in spaces:
            continue
        if not is_simulated and allocation.space != "device":
            continue
        here, content = bytes_of(allocation), None
        if allocation.kind in keep:
            content = device.to(here, "host", kind=allocation.kind)
        if is_simulated:
            here.fill_(POISON_BYTE)
        else:
            owner.resize_(0)
        device.ledger.release(allocation)
        found.append(PutAway(allocation=allocation, content=content))
    return found


def bring_back(device: Device, items: Sequence[PutAway]) -> None:
    """Take the memory again, and write the bytes that were kept; others hold no content.

    Raises:
        OutOfDeviceMemoryError: there is no room for all of it; nothing is taken then.
    """
    for space in {item.allocation.space for item in items}:
        mine = [item.allocation for item in items if item.allocation.space == space]
        total = sum(allocation.num_bytes for allocation in mine)
        if not device.ledger.has_room(total, space):
            raise device.ledger.out_of_memory(total, mine[0].kind, space)
    for item in items:
        allocation, owner = item.allocation, item.allocation.owner()
        if owner is None:
            continue
        address = allocation.address
        if not isinstance(owner, np.ndarray):
            owner.resize_(allocation.num_bytes)
            address = owner.data_ptr()
        device.ledger.reclaim(allocation, address)
        if item.content is not None:
            here = bytes_of(allocation)
            device.launch(
                torch.Tensor.copy_, here, item.content, writes=(here,), site="wake_up"
            ).result()


def bytes_of(allocation: Allocation) -> torch.Tensor:
    """All bytes of a live allocation, uint8 `[num_bytes]`, where they are now."""
    owner = allocation.owner()
    assert owner is not None, "the allocation lives"
    if isinstance(owner, np.ndarray):
        start = allocation.address - owner.ctypes.data
        return torch.from_numpy(owner[start : start + allocation.num_bytes])
    flat = torch.empty(0, dtype=torch.uint8, device=owner.device).set_(owner)
    return flat[: allocation.num_bytes]
