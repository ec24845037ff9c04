"""Poison: memory that nobody has written yet, and slots that await a copy, read as NaN.

A slot is filled by work queued on the copy's own stream right before the copy, and declared, so
that the order of everything else stays as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.engines.base import POOL_KIND

if TYPE_CHECKING:
    import torch

POISON_BYTE = 0xFF
"""Repeated, it is NaN in every float type, and -1 in integers."""


def poison_device(device: Any) -> None:
    """Let a device hand out poisoned memory, and poison every slot before each copy into it."""
    if hasattr(device, "poison_on_free"):
        device.poison_on_free = True
    copy_async = device.copy_async

    def poison_then_copy(dst: torch.Tensor, src: Any, *, site: str = "") -> None:
        allocation = device.allocation_of(dst)
        if allocation is not None and allocation.kind == POOL_KIND:
            work = device.launch(fill, dst, writes=(dst,), site=f"poison.{site}")
            # As early as the schedule allows: with compute when copies come late, else with them.
            work.is_copy = getattr(device, "schedule", "") != "copy_late"
        copy_async(dst, src, site=site)

    device.copy_async = poison_then_copy


def fill(tensor: torch.Tensor) -> None:
    """Overwrite every element of a tensor that has no gaps, or all that lies in its extent."""
    import torch

    if tensor.is_contiguous():
        tensor.view(-1).view(torch.uint8).fill_(POISON_BYTE)
    else:
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
