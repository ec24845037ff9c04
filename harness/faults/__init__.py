"""Deliberate defects by name, and how they get into an engine before or after its start."""

from __future__ import annotations

from .base import FAULTS, Fault
from .plant import plant_after_start, plant_before_start, plant_in_worker

__all__ = ["FAULTS", "Fault", "plant_after_start", "plant_before_start", "plant_in_worker"]
