"""Devices, simulated and cuda, behind one interface; and the one that is in use now."""

from __future__ import annotations

from .base import Device, Event, Observer, Pending, Stream
from .memory import OutOfDeviceMemoryError, Space
from .schedule import SCHEDULES, Exhaustive, Scheduler, create_scheduler
from .simulated import SimulatedDevice

DEVICES = ("simulated", "cuda")

_current: Device | None = None


def get_device(
    name: str = "simulated",
    *,
    capacity_bytes: int | None = None,
    schedule: str | Scheduler = "in_order",
    seed: int = 0,
) -> Device:
    """Create a device.

    Args:
        name: `simulated` or `cuda`.
        capacity_bytes: Size of its device space in bytes; None is no limit.
        schedule: Who goes next on the simulated device: a name of `SCHEDULES`, or a scheduler.
        seed: Seed of `schedule="seeded"`.

    Raises:
        ValueError: An unknown name, or a schedule asked of real hardware.
        RuntimeError: There is no CUDA device here.
    """
    if name == "simulated":
        return SimulatedDevice(capacity_bytes=capacity_bytes, schedule=schedule, seed=seed)
    if name != "cuda":
        raise ValueError(f"device={name!r} must be one of {', '.join(DEVICES)}")
    if schedule != "in_order":
        raise ValueError(f"schedule={schedule!r} cannot be chosen on device='cuda'; use simulated")
    from .cuda import CudaDevice

    return CudaDevice(capacity_bytes=capacity_bytes)


def set_current_device(device: Device | None) -> None:
    """Make `device` the one that the engine works on; None forgets it."""
    global _current  # noqa: PLW0603 - a process works on one device at a time
    _current = device


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
    "Observer",
    "OutOfDeviceMemoryError",
    "Pending",
    "Scheduler",
    "SimulatedDevice",
    "Space",
    "Stream",
    "create_scheduler",
    "get_current_device",
    "get_device",
    "set_current_device",
]
