"""Which memory compute read in place, which memory copies took from, and after what compute.

Says of a parameter in host memory whether it was used as a view, and of a slot when it was refilled
and for whom; neither is asked of the offloader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.engines.base import EngineView

if TYPE_CHECKING:
    import torch


class CopyRecorder:
    """An observer of a device; keeps storage addresses, so memory is bounded by what is in use."""

    def __init__(self) -> None:
        self.read: set[int] = set()
        """Storages that compute read in place."""
        self.copied: dict[tuple[str, int], int] = {}
        """(site of the compute queued last, storage a copy took from) -> times, first seen first.

        The site is empty before any compute.
        """
        self._last_site = ""

    def on_launch(self, work: Any) -> None:
        """Note what compute reads; work that reads nothing, such as a fill, is no compute."""
        if work.reads:
            self._last_site = work.site
            self.read.update(storage_of(tensor) for tensor in work.reads)

    def on_copy(self, work: Any) -> None:
        """Note where a copy takes its bytes from, and what was queued before it."""
        for tensor in work.reads:
            key = (self._last_site, storage_of(tensor))
            self.copied[key] = self.copied.get(key, 0) + 1

    def on_record(self, event: Any, stream: Any) -> None:
        """Events decide nothing here."""

    def on_wait(self, stream: Any, event: Any) -> None:
        """Waits decide nothing here."""

    def on_host_wait(self, target: Any) -> None:
        """Once the host waited for everything, what is copied next is copied after no compute."""
        if target is None:
            self._last_site = ""

    def on_run(self, work: Any) -> None:
        """When work runs decides nothing here."""

    def was_viewed(self, tensor: torch.Tensor) -> bool | None:
        """Whether compute used the very bytes of `tensor` and never a copy of them.

        None when neither was seen: nothing has computed yet.
        """
        storage = storage_of(tensor)
        if any(source == storage for _, source in self.copied):
            return False
        return True if storage in self.read else None


def storage_of(tensor: torch.Tensor) -> int:
    """Address of a tensor's storage: the same for all its views and parts."""
    return tensor.untyped_storage().data_ptr()


def copy_recorder(view: EngineView) -> CopyRecorder | None:
    """The recorder on a live engine's device; None where none was asked for or none can see."""
    if not view.sees_compute:
        return None
    return next((o for o in view.observers if isinstance(o, CopyRecorder)), None)


def seen_refills(view: EngineView, recorder: CopyRecorder) -> Mapping[int, tuple[int, ...]]:
    """Decoder layer -> layers whose host copies were queued right after its compute, in order.

    Copies before any compute, or after compute outside the stack, refill nothing and are left out.
    """
    names = {id(module): name for name, module in view.model.named_modules()}
    owners: dict[int, int] = {}
    for item in view.offloaded_modules():
        layer = view.layer_of(f"{names.get(id(item.module), '')}.")
        if layer is not None:
            for host_copy in item.host_copies.values():
                owners.setdefault(storage_of(host_copy), layer)
    found: dict[int, dict[int, None]] = {}
    for site, source in recorder.copied:
        after = view.layer_of(f"{site}.")
        if after is not None and source in owners:
            found.setdefault(after, {})[owners[source]] = None
    return {layer: tuple(targets) for layer, targets in found.items()}
