"""Faults of recorded graphs: what a replay does not do again."""

from __future__ import annotations

from typing import Any

from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name


def _fill_when_recorded(modules: EngineModules) -> None:
    """A temporary is filled while its graph is recorded, by a copy that is not part of it."""
    owner: Any = modules.module("offloader.uva").UVAOffloader
    fill_then_copy = owner._fill

    def fill(self: Any, temporary: Any, source: Any, site: str) -> None:
        if self.device.capturing is not None:
            temporary.copy_(source)
        else:
            fill_then_copy(self, temporary, source, site)

    replace_name(owner, "_fill", fill)


REPLAY_OF_TEMPORARY = Fault(
    name="replay-of-temporary",
    summary="a recorded graph holds the address of a temporary copy; replay does not fill it again",
    seen_in=("sglang#23664",),
    defect_class="G",
    killed_by=("tokens", "integrity"),
    blind="eager only",
    modes=("uva-copy",),
    enforce_eager=False,
    before_start=_fill_when_recorded,
)
