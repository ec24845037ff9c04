"""The device buffers that prefetched parameters are copied into; allocated once, then reused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from harness.refengine.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamInfo:
    """What decides whether two parameters can share a buffer."""

    name: str
    """Relative to its module."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def from_tensor(cls, name: str, tensor: torch.Tensor) -> ParamInfo:
        """Read the facts off a tensor."""
        return cls(name=name, shape=tuple(tensor.shape), stride=tensor.stride(), dtype=tensor.dtype)


class StaticBufferPool:
    """`slot_capacity` buffers for each distinct `ParamInfo`; addresses never change.

    Args:
        param_infos: Of all offloaded parameters of all modules; repetitions share buffers.
        slot_capacity: How many modules have their weights on the device at once.
        device: Where to allocate.
        kind: What it is accounted as.

    Raises:
        OutOfDeviceMemoryError: The device cannot hold the pool.
    """

    def __init__(
        self,
        param_infos: Iterable[ParamInfo],
        slot_capacity: int,
        device: Device,
        kind: str = "buffer_pool",
    ) -> None:
        self.slot_capacity = slot_capacity
        self._buffers = {
            info: [
                device.empty(info.shape, info.dtype, kind=kind, stride=info.stride)
                for _ in range(slot_capacity)
            ]
            for info in dict.fromkeys(param_infos)
        }
        self.total_bytes = sum(b.nbytes for slots in self._buffers.values() for b in slots)
        """Bytes of all buffers."""

    def get_buffer(self, info: ParamInfo, slot_idx: int) -> torch.Tensor:
        """Return the buffer of a parameter in a slot."""
        return self._buffers[info][slot_idx]
