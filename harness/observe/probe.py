"""One look at everything: the four probes put together into a `ProbeSnapshot`."""

from __future__ import annotations

import os

from harness.core import ProbeSnapshot
from harness.engines.base import EngineView

from .buffers import read_buffers
from .config import read_config
from .drift import Drift
from .instruments import collect
from .memory import read_memory
from .placement import read_placement


def read_probe(view: EngineView, *, load_bytes: int = 0, load_peak_bytes: int = 0) -> ProbeSnapshot:
    """Read a live engine.

    Args:
        view: the engine, seen from its worker, in this process.
        load_bytes: device bytes that were in use right after loading.
        load_peak_bytes: the most that were in use until then.

    Returns:
        What is true now; internals that moved are named in `drift`.
    """
    drift = Drift()
    drift.read(view.synchronize, None)
    facts = read_config(view, drift)
    params = read_placement(view, drift)
    ordering, integrity = drift.read(lambda: collect(view), (None, None))
    return ProbeSnapshot(
        **facts,
        params=params,
        buffer_pool=drift.read(lambda: read_buffers(view, drift), None),
        memory=read_memory(view, drift, load_bytes=load_bytes, load_peak_bytes=load_peak_bytes),
        process_id=os.getpid(),
        ordering=ordering,
        integrity=integrity,
        sees_compute=drift.read(lambda: view.sees_compute, True),
        is_asleep=drift.read(lambda: view.is_asleep, False),
        not_observed=tuple(drift.read(lambda: view.not_observed, ())),
        drift=tuple(drift.names),
    )
