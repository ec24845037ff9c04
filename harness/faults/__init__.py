"""Deliberate defects by name, and how they get into an engine before or after its start.

Every `Fault` at the top of a module in this folder is registered; none imports torch by itself.
"""

from __future__ import annotations

import importlib
import pkgutil

from .base import FAULTS, OFFLOADS, Fault, Mode
from .plant import plant_after_start, plant_before_start, plant_in_worker, planted_faults

__all__ = [
    "FAULTS",
    "OFFLOADS",
    "Fault",
    "Mode",
    "plant_after_start",
    "plant_before_start",
    "plant_in_worker",
    "planted_faults",
]


def _register_all() -> None:
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, Fault):
                FAULTS.register(value.name, value)


_register_all()
