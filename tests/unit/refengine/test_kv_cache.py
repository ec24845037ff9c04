import pytest
import torch

from harness.refengine.config import ConfigError, EngineConfig
from harness.refengine.device import OutOfDeviceMemoryError, get_device
from harness.refengine.kv_cache import (
    NULL_BLOCK,
    BlockPool,
    allocate_kv_caches,
    block_bytes,
    num_kv_blocks,
)
from harness.refengine.models import ModelShape


@pytest.fixture
def sizes(make_checkpoint):
    def make(**args):
        config = EngineConfig.from_args(make_checkpoint(), **args)
        return config, ModelShape.from_hf(config.hf_config)

    return make


def test_null_block_is_never_handed_out():
    pool = BlockPool(num_blocks=4, block_size=16)

    assert pool.allocate(48) == (1, 2, 3)
    assert NULL_BLOCK not in (1, 2, 3)
    assert pool.allocate(1) is None


def test_allocation_takes_all_or_nothing_and_comes_back():
    pool = BlockPool(num_blocks=5, block_size=4)
    first = pool.allocate(9)

    assert pool.allocate(5) is None
    assert pool.num_free == 1
    pool.free(first)
    assert pool.num_free == 4


def test_block_freed_twice_is_noticed():
    pool = BlockPool(num_blocks=3, block_size=4)
    blocks = pool.allocate(4)
    pool.free(blocks)

    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks)


def test_cache_is_zeroed_and_accounted_to_the_byte(sizes):
    config, shape = sizes(block_size=8)
    device = get_device()
    caches = allocate_kv_caches(3, config, shape, device)

    assert 3 * block_bytes(config, shape, torch.float32) == sum(c.nbytes for c in caches)
    assert {"kv_cache": sum(c.nbytes for c in caches)} == device.memory_stats()["device"]["by_kind"]
    assert all(not cache.any() for cache in caches)


def test_cache_holds_every_request_at_full_length_when_memory_allows(sizes):
    config, shape = sizes(max_num_seqs=3, block_size=16)

    assert num_kv_blocks(config, shape, get_device()) == 1 + 3 * 8


def test_cache_takes_what_the_device_has_left(sizes):
    config, shape = sizes(max_num_seqs=3, block_size=16)
    device = get_device(capacity_bytes=12 * block_bytes(config, shape, torch.float32) + 5)

    assert num_kv_blocks(config, shape, device) == 12


def test_device_too_small_for_one_request_is_out_of_memory(sizes):
    config, shape = sizes(block_size=16)
    device = get_device(capacity_bytes=8 * block_bytes(config, shape, torch.float32))

    with pytest.raises(OutOfDeviceMemoryError):
        allocate_kv_caches(num_kv_blocks(config, shape, device), config, shape, device)


def test_given_bytes_decide(sizes):
    config, shape = sizes()
    size = block_bytes(config, shape, torch.float32)

    assert num_kv_blocks(sizes(kv_cache_memory_bytes=8 * size - 1)[0], shape, get_device()) == 7
    with pytest.raises(ConfigError, match="must hold at least 2 blocks"):
        num_kv_blocks(sizes(kv_cache_memory_bytes=2 * size - 1)[0], shape, get_device())
