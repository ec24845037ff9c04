"""KV cache blocks: who owns which, and the tensors that hold them.

Block 0 is the null block: padding and warm-up point at it, no request ever owns it.
"""

from __future__ import annotations

from collections import deque
from math import prod

import torch

from .config import EngineConfig, check
from .device import Device
from .models import ModelShape

NULL_BLOCK = 0


class BlockPool:
    """Free blocks, handed out lowest first and taken back when a request ends."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(NULL_BLOCK + 1, num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that no request owns."""
        return len(self._free)

    @property
    def num_usable(self) -> int:
        """Blocks there are for requests, free or not."""
        return self.num_blocks - 1

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_tokens: int) -> tuple[int, ...] | None:
        """Blocks for `num_tokens` tokens, or None while too few are free."""
        needed = self.blocks_for(num_tokens)
        if needed > self.num_free:
            return None
        return tuple(self._free.popleft() for _ in range(needed))

    def free(self, blocks: tuple[int, ...]) -> None:
        """Take blocks back."""
        assert NULL_BLOCK not in blocks, "nobody owns the null block"
        assert not set(blocks) & set(self._free), "freed twice"
        self._free.extend(blocks)


def block_bytes(config: EngineConfig, shape: ModelShape, dtype: torch.dtype) -> int:
    """Device bytes of one block over all layers, each by its kind."""
    sizes = (prod(shape.cache_dims(idx, 1, config.block_size)) for idx in range(shape.num_layers))
    return sum(sizes) * dtype.itemsize


def num_kv_blocks(config: EngineConfig, shape: ModelShape, device: Device) -> int:
    """How many blocks to make, the null block included.

    `kv_cache_memory_bytes` decides when given. Else: room for every request at full length, at
    most 8192 tokens (but always one full request), and no more than the device has left.
    """
    one_request = -(-config.model_len // config.block_size)
    size = block_bytes(config, shape, getattr(torch, config.dtype))
    if config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // size
        check(
            num_blocks >= 2,
            f"kv_cache_memory_bytes={config.kv_cache_memory_bytes!r} must hold at least 2 blocks "
            f"of {size} bytes",
        )
        return num_blocks
    wanted = 1 + max(one_request, min(config.max_num_seqs * one_request, 8192 // config.block_size))
    if device.capacity_bytes is None:
        return wanted
    left: int = device.capacity_bytes - device.memory_stats()["counted"]
    return max(1 + one_request, min(wanted, left // size))


def allocate_kv_caches(
    num_blocks: int, config: EngineConfig, shape: ModelShape, device: Device
) -> list[torch.Tensor]:
    """One zeroed tensor a layer, of the dims that its kind needs: see `ModelShape.cache_dims`.

    Zeroed because padding reads the null block, and masked NaN would still be NaN.

    Raises:
        OutOfDeviceMemoryError: the device has no room.
    """
    dtype = getattr(torch, config.dtype)
    caches = [
        device.empty(shape.cache_dims(idx, num_blocks, config.block_size), dtype, kind="kv_cache")
        for idx in range(shape.num_layers)
    ]
    for cache in caches:
        cache.zero_()
    return caches
