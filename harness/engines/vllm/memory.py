"""Bytes in use by torch's allocators, and by the live tensors that weights are in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from harness.core import MemoryTrace
from harness.engines.base import EngineView

if TYPE_CHECKING:
    from torch import nn

CUDA_GRANULARITY = 512
"""Bytes that torch's CUDA allocator rounds to."""


def read_memory(view: EngineView) -> MemoryTrace:
    """Memory of the worker's process, now.

    On CUDA the device's figures are the allocator's. A CPU has no such account: there they are
    the bytes of all live parameters, buffers and slots.
    """
    pool = [buffer for ring in view.pool_slots() or () for buffer in ring]
    slots = {buffer.untyped_storage().data_ptr() for buffer in pool}
    resident, host = _weights(view, slots)
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
        device_bytes=torch.cuda.memory_allocated(),
        device_peak_bytes=torch.cuda.max_memory_allocated(),
        pinned_bytes=pinned["pinned"],
        host_bytes=pinned["host"],
        granularity_bytes=CUDA_GRANULARITY,
        by_kind=kinds,
    )


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


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*(p.data for p in model.parameters()), *model.buffers()]


def _total(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)
