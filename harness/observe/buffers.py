"""The static buffer pool: its size, who owns which slot by address, and which refills were seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.core import BufferPoolInfo
from harness.engines.base import EngineView

from .drift import Drift

if TYPE_CHECKING:
    import torch


def read_buffers(view: EngineView, drift: Drift) -> BufferPoolInfo | None:
    """The pool of a prefetch offloader; None without one."""
    slots = drift.read(view.pool_slots, None)
    if slots is None:
        return None
    storages = {
        buffer.untyped_storage().data_ptr(): buffer.untyped_storage().nbytes()
        for buffers in slots
        for buffer in buffers
    }
    layers, owned = _owners(view, drift)
    refills: Mapping[int, int] = drift.read(view.refills, {})
    unknown = sorted({i for pair in refills.items() for i in pair} - set(layers))
    drift.names += [f"no offloaded module {i}, though a refill names it" for i in unknown]
    return BufferPoolInfo(
        slot_capacity=len(slots),
        num_bytes=sum(storages.values()),
        slots=owned,
        refill_after={layers[i]: layers[j] for i, j in refills.items() if not {i, j} & {*unknown}},
    )


def slot_at(view: EngineView, tensor: torch.Tensor) -> int | None:
    """The slot that `tensor` starts in, by address; None when in none."""
    address = tensor.data_ptr()
    for slot_idx, buffers in enumerate(view.pool_slots() or ()):
        if any(buffer.data_ptr() == address for buffer in buffers):
            return slot_idx
    return None


def _owners(view: EngineView, drift: Drift) -> tuple[dict[int, int], dict[int, int]]:
    """Index among offloaded modules -> decoder layer, and decoder layer -> slot by address.

    A module whose parameters lie in no slot, or in several, has no slot.
    """
    names = {id(module): name for name, module in view.model.named_modules()}
    layers: dict[int, int] = {}
    owned: dict[int, int] = {}
    for index, item in enumerate(drift.read(view.offloaded_modules, ())):
        layer = view.layer_of(f"{names.get(id(item.module), '')}.")
        layers[index] = -1 - index if layer is None else layer
        found = {slot_at(view, item.module.get_parameter(name)) for name in item.host_copies}
        if len(found) == 1 and (slot := found.pop()) is not None:
            owned[layers[index]] = slot
    return layers, owned
