"""Probes: a live engine's view -> ProbeSnapshot; every fact is read from live objects."""

from .probe import read_probe

__all__ = ["read_probe"]
