"""Delay on real hardware: a spinning kernel before each copy into a slot, or before its readers.

It stretches the time in which a missing wait shows; it is neither observed nor an order of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from harness.core import SettingError
from harness.core.setting import DELAYS
from harness.engines.base import POOL_KIND

if TYPE_CHECKING:
    import torch

SPIN_CYCLES = 2_000_000
"""About a millisecond at 2 GHz: many times a small layer's copy or compute."""


def delay_device(
    device: Any, instruments: Collection[str], spin: Callable[[Any], None] | None = None
) -> None:
    """Queue a spinning kernel right before work that touches a slot, on that work's own stream.

    Args:
        device: a device that has done nothing yet.
        instruments: `delay-copy` holds copies into slots up, `delay-compute` work that reads them.
        spin: queues the kernel on the device's current stream; None takes torch's.

    Raises:
        SettingError: the device's schedule is a choice, so there is nothing to delay.
    """
    chosen = [name for name in DELAYS if name in instruments]
    if chosen and device.name != "cuda":
        raise SettingError(
            f"instruments={chosen[0]!r} needs device='cuda', this is {device.name!r}: "
            f"use schedule={DELAYS[chosen[0]]} instead"
        )
    if "delay-copy" in chosen:
        _delay_copies(device, spin or spin_on_current)
    if "delay-compute" in chosen:
        _delay_readers(device, spin or spin_on_current)


def spin_on_current(device: Any) -> None:
    """Queue the spinning kernel on a cuda device's current stream."""
    import torch

    with torch.cuda.stream(device.current_stream().raw):
        torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]


def _delay_copies(device: Any, spin: Callable[[Any], None]) -> None:
    copy_async = device.copy_async

    def spin_then_copy(dst: torch.Tensor, src: Any, *, site: str = "") -> None:
        if _is_slot(device, dst):
            spin(device)
        copy_async(dst, src, site=site)

    device.copy_async = spin_then_copy


def _delay_readers(device: Any, spin: Callable[[Any], None]) -> None:
    launch = device.launch

    def spin_then_launch(fn: Callable[..., Any], *args: Any, **declared: Any) -> Any:
        if any(_is_slot(device, tensor) for tensor in declared.get("reads", ())):
            spin(device)
        return launch(fn, *args, **declared)

    device.launch = spin_then_launch


def _is_slot(device: Any, tensor: torch.Tensor) -> bool:
    allocation = device.allocation_of(tensor)
    return allocation is not None and allocation.kind == POOL_KIND
