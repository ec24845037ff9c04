"""Devices, simulated and cuda, behind one interface; and the one that is in use now."""

from __future__ import annotations

import weakref

from .base import Device, Event, Graph, Observer, Pending, Stream
from .memory import OutOfDeviceMemoryError, Space
from .reclaim import PutAway, bring_back, put_away
from .schedule import SCHEDULES, Exhaustive, Scheduler, create_scheduler
from .simulated import SimulatedDevice

DEVICES = ("simulated", "cuda")

_current: Device | None = None
_before: list[weakref.ref[Device]] = []
"""Devices of engines that started earlier and may live still, the latest last."""


def get_device(
    name: str = "simulated",
    *,
    capacity_bytes: int | None = None,
    schedule: str | Scheduler = "in_order",
    seed: int = 0,
    unified_memory: bool = False,
    pinned_granularity: str = "exact",
) -> Device:
    """Create a device.

    Args:
        name: `simulated` or `cuda`.
        capacity_bytes: Size of its device space in bytes; None is no limit.
        schedule: Who goes next on the simulated device: a name of `SCHEDULES`, or a scheduler.
        seed: Seed of `schedule="seeded"`.
        unified_memory: Pinned and viewed host bytes count against `capacity_bytes` too.
        pinned_granularity: How pinned allocations round up: `exact` or `power_of_two`.

    Raises:
        ValueError: An unknown name, or a schedule or memory asked of real hardware.
        RuntimeError: There is no CUDA device here.
    """
    if name == "simulated":
        return SimulatedDevice(
            capacity_bytes=capacity_bytes,
            schedule=schedule,
            seed=seed,
            unified_memory=unified_memory,
            pinned_granularity=pinned_granularity,
        )
    if name != "cuda":
        raise ValueError(f"device={name!r} must be one of {', '.join(DEVICES)}")
    if schedule != "in_order":
        raise ValueError(f"schedule={schedule!r} cannot be chosen on device='cuda'; use simulated")
    if unified_memory or pinned_granularity != "exact":
        raise ValueError(
            f"unified_memory={unified_memory!r}, pinned_granularity={pinned_granularity!r} cannot "
            "be chosen on device='cuda'; use simulated"
        )
    from .cuda import CudaDevice

    return CudaDevice(capacity_bytes=capacity_bytes)


def set_current_device(device: Device | None) -> None:
    """Make `device` the one that the engine works on; None forgets it."""
    global _current  # noqa: PLW0603 - a process works on one device at a time
    if _current is not None and device is not None:
        _before.append(weakref.ref(_current))
    _current = device


def drop_device(device: Device) -> None:
    """Forget the device of an engine that ends; the current one is that of one still alive."""
    global _current  # noqa: PLW0603 - a process works on one device at a time
    _before[:] = [ref for ref in _before if ref() not in (None, device)]
    if _current is device:
        _current = _before.pop()() if _before else None


def get_current_device() -> Device:
    """Return the device that the engine works on.

    Raises:
        RuntimeError: None was set.
    """
    if _current is None:
        raise RuntimeError("no current device: call set_current_device(get_device(...)) first")
    return _current


__all__ = [
    "DEVICES",
    "SCHEDULES",
    "Device",
    "Event",
    "Exhaustive",
    "Graph",
    "Observer",
    "OutOfDeviceMemoryError",
    "Pending",
    "PutAway",
    "Scheduler",
    "SimulatedDevice",
    "Space",
    "Stream",
    "bring_back",
    "create_scheduler",
    "drop_device",
    "get_current_device",
    "get_device",
    "put_away",
    "set_current_device",
]
