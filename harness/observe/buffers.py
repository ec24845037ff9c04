"""The static buffer pool: its size, who owns which slot by address, and which refills were seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.core import BufferPoolInfo
from harness.engines.base import EngineView

from .copies import copy_recorder, seen_refills
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
    refills = drift.read(lambda: _refills(view, layers, drift), {})
    return BufferPoolInfo(
        slot_capacity=len(slots),
        num_bytes=sum(storages.values()),
        slots=owned,
        refill_after={layer: told_of(layer, seen, owned) for layer, seen in refills.items()},
    )


def told_of(layer: int, seen: Sequence[int], owned: Mapping[int, int]) -> int:
    """Which of the refills seen after a layer to tell of: one that was wrong, if any was.

    Args:
        layer: the layer that ran.
        seen: layers whose copy was started after it; more than one is wrong in any case.
        owned: layer -> slot; right is the next owner of the same slot, around the ring.
    """
    sharing = sorted(other for other, slot in owned.items() if slot == owned.get(layer))
    after = next((other for other in sharing if other > layer), sharing[0] if sharing else None)
    return next((target for target in seen if target != after), seen[0])


def _refills(
    view: EngineView, layers: Mapping[int, int], drift: Drift
) -> Mapping[int, Sequence[int]]:
    """Layer -> layers refilled after it, from the copies seen; else from the offloader's note."""
    if (recorder := copy_recorder(view)) is not None:
        return seen_refills(view, recorder)
    noted = view.refills()
    unknown = sorted({i for after, targets in noted.items() for i in (after, *targets)} - {*layers})
    drift.names += [f"no offloaded module {i}, though a refill names it" for i in unknown]
    known = {i: [layers[j] for j in found if j in layers] for i, found in noted.items()}
    return {layers[i]: targets for i, targets in known.items() if i in layers and targets}


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
