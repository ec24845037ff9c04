"""What the harness mixes into an engine's worker, wherever that lives; JSON in, JSON out."""

from __future__ import annotations

import importlib

from harness.core import Json, encode
from harness.engines.base import PLANTED, view_of

from .probe import read_probe


class ProbeExtension:
    """Methods reached by `collective_rpc`; `self` is the engine's own worker."""

    _harness_load_bytes = 0

    def harness_loaded(self) -> int:
        """Note the device bytes in use now, right after loading, and watch reads from now on."""
        view = view_of(self)
        self._harness_load_bytes = view.memory().device_bytes
        view.watch_reads()
        return self._harness_load_bytes

    def harness_probe(self) -> dict[str, Json]:
        """An encoded `ProbeSnapshot` of this worker."""
        data: dict[str, Json] = encode(
            read_probe(view_of(self), load_bytes=self._harness_load_bytes)
        )
        return data

    def harness_fault(self, planter: str, name: str) -> str:
        """Plant a fault in this live worker.

        Args:
            planter: `module:function` that takes the view and the name.
            name: the fault's.
        """
        module, _, function = planter.partition(":")
        return str(getattr(importlib.import_module(module), function)(view_of(self), name))

    def harness_device(self) -> str:
        """Kind of the device this worker uses."""
        return view_of(self).device_name

    def harness_planted(self) -> list[str]:
        """Names of the faults that are planted in this process."""
        return list(PLANTED)
