"""Pinned bytes of torch's host allocator, where this torch keeps an account of them."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def read_pinned_allocated():
    pytest.importorskip("torch")
    from harness.engines.vllm.memory import read_pinned_allocated

    return read_pinned_allocated


def test_the_allocators_figure_is_taken(read_pinned_allocated):
    cuda = SimpleNamespace(
        host_memory_stats=lambda: {"allocated_bytes.current": 8192, "active_bytes.current": 4096}
    )
    assert read_pinned_allocated(cuda) == 8192


@pytest.mark.parametrize(
    "cuda", [SimpleNamespace(), SimpleNamespace(host_memory_stats=dict)], ids=["none", "empty"]
)
def test_a_torch_without_an_account_says_nothing(read_pinned_allocated, cuda):
    assert read_pinned_allocated(cuda) is None
