import pytest
import torch
from torch import nn

from harness.refengine.device import OutOfDeviceMemoryError, SimulatedDevice
from harness.refengine.device.memory import Ledger

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.uint8]


def current(device, space="device"):
    return device.memory_stats()[space]["current"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_exact_aligned_and_gone_with_the_last_tensor(dtype):
    device = SimulatedDevice()
    tensor = device.empty((3, 5), dtype)

    assert tensor.shape == (3, 5)
    assert dtype == tensor.dtype
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0
    assert 15 * dtype.itemsize == current(device)
    view = tensor[1:].view(-1)[2:]
    del tensor
    assert 15 * dtype.itemsize == current(device)
    del view
    assert current(device) == 0
    assert 15 * dtype.itemsize == device.memory_stats()["device"]["peak"]


def test_spaces_and_kinds_are_counted_apart():
    device = SimulatedDevice(capacity_bytes=100)
    kept = [
        device.empty((2,), torch.float32, kind="kv_cache"),
        device.empty((3,), torch.float32),
        device.empty((5,), torch.float32, space="pinned"),
        device.empty((7,), torch.float32, space="host", kind="state"),
    ]
    stats = device.memory_stats()

    assert stats["device"] == {"current": 20, "peak": 20, "by_kind": {"kv_cache": 8, "weights": 12}}
    assert stats["pinned"]["by_kind"] == {"weights": 20}
    assert stats["host"]["by_kind"] == {"state": 28}
    assert stats["capacity"] == 100
    assert [device.space_of(t) for t in kept] == ["device", "device", "pinned", "host"]
    assert [device.is_pinned(t) for t in kept] == [False, False, True, False]
    kept.clear()
    assert [current(device, s) for s in ("device", "pinned", "host")] == [0, 0, 0]


def test_a_parameter_moves_its_bytes_from_one_space_to_another():
    device = SimulatedDevice()
    param = nn.Parameter(device.empty((8,), torch.float32), requires_grad=False)
    param.data = device.to(param.data, "pinned")

    assert current(device) == 0
    assert current(device, "pinned") == 32
    assert device.is_pinned(param)


def test_memory_of_others_counts_as_host_memory_that_is_not_pinned():
    device = SimulatedDevice()

    assert device.space_of(torch.ones(3)) == "host"
    assert not device.is_pinned(torch.ones(3))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0)])
def test_scalars_and_empty_shapes_have_a_space_too(shape):
    device = SimulatedDevice()
    tensor = device.empty(shape, torch.float32, space="pinned")

    assert shape == tuple(tensor.shape)
    assert device.is_pinned(tensor)
    assert tensor.numel() * 4 == current(device, "pinned")


def test_a_full_device_says_what_holds_it():
    device = SimulatedDevice(capacity_bytes=100)
    kept = [device.empty((15,), torch.float32), device.empty((5,), torch.float32, kind="kv_cache")]

    text = (
        "asked for 24 bytes (kind='state'), in use 80 of capacity 100 bytes "
        "(kv_cache=20, weights=60)"
    )
    with pytest.raises(OutOfDeviceMemoryError) as error:
        device.empty((6,), torch.float32, kind="state")
    assert text in str(error.value)
    kept.append(device.empty((5,), torch.float32))
    assert current(device) == 100
    device.empty((1000,), torch.float32, space="host")  # only the device space has a limit
    kept.clear()
    kept.append(device.empty((25,), torch.float32))
    assert current(device) == 100


def test_a_full_device_first_finishes_the_work_that_holds_memory():
    device = SimulatedDevice(capacity_bytes=100)
    held = device.empty((20,), torch.float32)
    held.fill_(2)
    total = device.launch(torch.sum, held)
    del held

    assert current(device) == 80
    device.empty((20,), torch.float32)
    assert total.result().item() == 40.0


def test_copies_keep_values_and_dense_strides():
    device = SimulatedDevice()
    source = torch.arange(12.0).view(3, 4).t()
    copy = device.to(source, "host")

    assert copy.stride() == (1, 4)
    assert source.tolist() == copy.tolist()
    gaps = device.to(torch.arange(12.0)[::3], "device")
    assert gaps.tolist() == [0.0, 3.0, 6.0, 9.0]
    assert current(device) == 16
    repeated = device.to(torch.ones(1).expand(4), "device")
    assert repeated.stride() == (1,)


def test_a_copy_sees_what_was_queued_before_it():
    device = SimulatedDevice()
    tensor = device.empty((2,), torch.float32)
    device.launch(tensor.fill_, 3.0)

    assert device.to(tensor, "host").tolist() == [3.0, 3.0]


def test_a_uva_view_is_another_tensor_on_the_same_host_bytes():
    device = SimulatedDevice()
    for space in ("host", "pinned"):
        host = device.to(torch.ones(4), space)
        view = device.uva_view(host)
        view.fill_(5)

        assert view is not host
        assert host.tolist() == [5.0] * 4
        assert space == device.space_of(view)
        assert current(device, space) == 16
        del host
        assert current(device, space) == 16
        del view
        assert current(device, space) == 0


def test_a_uva_view_of_device_or_foreign_memory_is_refused():
    device = SimulatedDevice()

    with pytest.raises(ValueError, match="space='device'"):
        device.uva_view(device.empty((1,), torch.float32))
    with pytest.raises(ValueError, match="another owner"):
        device.uva_view(torch.ones(1))


def test_fresh_memory_is_poisoned_only_on_request():
    device = SimulatedDevice()
    device.poison_on_free = True

    assert all(device.empty((64,), d).isnan().all() for d in (torch.float32, torch.bfloat16))


def test_the_peak_is_the_most_that_was_in_use_at_once():
    device = SimulatedDevice()
    for count in (5, 9, 2):
        device.empty((count,), torch.float32)

    assert device.memory_stats()["device"]["peak"] == 36


def test_the_peak_can_start_again():
    device = SimulatedDevice()
    device.empty((100,), torch.float32)
    kept = device.empty((1,), torch.float32)
    device.reset_peak_memory_stats()

    assert kept.nbytes == device.memory_stats()["device"]["peak"]


def test_a_reused_address_is_a_new_allocation():
    device = SimulatedDevice()
    for count in range(1, 200):
        tensor = device.empty((count % 3 + 1,), torch.float32, space="host")
        assert tensor.nbytes == current(device, "host")
        del tensor


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="capacity_bytes=-1"):
        Ledger(-1)


class Owner:
    """Something that can die."""


def test_memory_may_come_back_where_other_memory_was():
    """Hardware's allocator hands the place of one storage to another that wakes up earlier."""
    ledger, first, second = Ledger(), Owner(), Owner()
    ledger.add(first, address=100, num_bytes=10, space="device", kind="weights")
    ledger.add(second, address=200, num_bytes=20, space="device", kind="kv_cache")
    away = ledger.living(("weights", "kv_cache"))

    for allocation in away:
        ledger.release(allocation)
    assert [0, []] == [ledger.stats()["device"]["current"], ledger.living(("weights",))]
    assert "weights" == ledger.find(100).kind
    ledger.reclaim(away[0], 200)
    ledger.reclaim(away[1], 100)

    assert ["weights", "kv_cache"] == [ledger.find(200).kind, ledger.find(100).kind]
    assert 30 == ledger.stats()["device"]["current"]
    del first
    assert [None, 20] == [ledger.find(200), ledger.stats()["device"]["current"]]


def test_memory_whose_owner_dies_while_it_is_away_is_not_counted_twice():
    ledger, owner = Ledger(), Owner()
    ledger.add(owner, address=100, num_bytes=10, space="device", kind="weights")
    (allocation,) = ledger.living(("weights",))
    ledger.release(allocation)

    del owner

    assert ledger.find(100) is None
    assert 0 == ledger.stats()["device"]["current"]
