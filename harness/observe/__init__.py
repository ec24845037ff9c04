"""Probes: a live engine's view -> ProbeSnapshot; every fact is read from live objects."""

from .instruments import collect, install
from .probe import read_probe

__all__ = ["collect", "install", "read_probe"]
