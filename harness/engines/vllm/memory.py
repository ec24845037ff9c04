"""Bytes in use by torch's allocators, and by the live tensors that weights are in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from harness.core import MemoryTrace
from harness.engines.base import EngineView

from .pointers import is_mapped

if TYPE_CHECKING:
    from torch import nn

CUDA_GRANULARITY = 512
"""Bytes that torch's CUDA allocator rounds to."""


def read_memory(view: EngineView) -> MemoryTrace:
    """Memory of the worker's process, now.

    On CUDA the device's figures are the allocator's, and so are the pinned bytes allocated, cached
    blocks and those of others included, where torch keeps an account of them. A CPU has no such
    account: there they are the bytes of all live parameters, buffers and slots.
    """
    pool = [buffer for ring in view.pool_slots() or () for buffer in ring]
    slots = {buffer.untyped_storage().data_ptr() for buffer in pool}
    away = _put_away(view)
    resident, host = _weights(view, slots | away.keys())
    pool = [buffer for buffer in pool if buffer.untyped_storage().data_ptr() not in away]
    kinds = {"weights": resident, "buffer_pool": _total(pool)}
    pinned = {"pinned": 0, "host": 0} | host
    if view.device_name != "cuda":
        in_use = sum(kinds.values())
        return MemoryTrace(
            device_bytes=in_use,
            device_peak_bytes=in_use,
            host_bytes=pinned["host"],
            by_kind=kinds,
        )
    return MemoryTrace(
        device_bytes=torch.cuda.memory_allocated() - _total(away.values()),
        device_peak_bytes=torch.cuda.max_memory_allocated(),
        pinned_bytes=pinned["pinned"],
        pinned_allocated_bytes=read_pinned_allocated(torch.cuda),
        host_bytes=pinned["host"],
        granularity_bytes=CUDA_GRANULARITY,
        by_kind=kinds,
    )


def read_pinned_allocated(cuda: object) -> int | None:
    """Bytes of pinned blocks that torch's host allocator took; None of a release without account.

    Args:
        cuda: the module `torch.cuda`.
    """
    if not hasattr(cuda, "host_memory_stats"):
        return None
    taken: int | None = cuda.host_memory_stats().get("allocated_bytes.current")
    return taken


def _weights(view: EngineView, slots: set[int]) -> tuple[int, dict[str, int]]:
    """Bytes of weights on the device outside the pool, and by space elsewhere."""
    resident: dict[int, torch.Tensor] = {}
    spaces: dict[str, dict[int, torch.Tensor]] = {}
    for tensor in _tensors(view.model):
        address = tensor.untyped_storage().data_ptr()
        space = view.space_of(tensor)
        if space != "device":
            spaces.setdefault(space, {})[address] = tensor
        elif address not in slots:
            resident[address] = tensor
    for item in view.offloaded_modules():
        for copy in item.host_copies.values():
            spaces.setdefault(view.space_of(copy), {})[copy.data_ptr()] = copy
    return _total(resident.values()), {name: _total(t.values()) for name, t in spaces.items()}


def _put_away(view: EngineView) -> dict[int, torch.Tensor]:
    """Those that the allocator still counts though a sleep took the memory from behind them."""
    if not view.is_asleep:
        return {}
    found = [*_tensors(view.model), *(b for ring in view.pool_slots() or () for b in ring)]
    return {t.untyped_storage().data_ptr(): t for t in found if not is_mapped(t)}


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*(p.data for p in model.parameters()), *model.buffers()]


def _total(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)
