import gc
import re

import pytest
import torch
from offload_toys import Layer, build, device_in_use, expected, run_steps
from torch import nn

from harness.refengine.device import SCHEDULES, OutOfDeviceMemoryError
from harness.refengine.offloader import ModuleOffloader, ParamInfo, PrefetchOffloader

PIN = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
RINGS = [(m, s) for m in range(1, 9) for s in range(1, 7)]


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.delenv(PIN, raising=False)
    with device_in_use() as device:
        yield device


def run_under(schedule, seed=0, *, num_layers=6, prefetch_step=2, steps=3, **kwargs):
    with device_in_use(schedule=schedule, seed=seed) as device:
        offloader = PrefetchOffloader(1, 1, prefetch_step, **kwargs)
        layers = build(device, offloader, num_layers)
        return run_steps(layers, steps)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("num_layers", "prefetch_step"), [(1, 1), (1, 3), (5, 2), (6, 3), (7, 4)])
def test_no_schedule_changes_the_result(schedule, num_layers, prefetch_step):
    for seed in range(3):
        actual = run_under(schedule, seed, num_layers=num_layers, prefetch_step=prefetch_step)

        assert expected(num_layers, 3) == actual


@pytest.mark.parametrize(
    ("group_size", "num_in_group", "offloaded"),
    [(1, 1, [0, 1, 2, 3, 4, 5, 6]), (2, 1, [1, 3, 5]), (4, 2, [2, 3, 6]), (8, 8, list(range(7)))],
)
def test_the_last_modules_of_each_group_are_offloaded(device, group_size, num_in_group, offloaded):
    offloader = PrefetchOffloader(group_size, num_in_group, 2)
    layers = build(device, offloader, 7)

    assert offloaded == [o.module_index for o in offloader.module_offloaders]
    assert [layers[idx] for idx in offloaded] == [o.module for o in offloader.module_offloaders]
    assert [i % 2 for i in range(len(offloaded))] == [
        o.slot_idx for o in offloader.module_offloaders
    ]
    assert 32 * len(offloaded) == offloader.total_offloaded_bytes
    by_kind = device.memory_stats()["device"]["by_kind"]
    assert 32 * (7 - len(offloaded)) == by_kind.get("weights", 0)
    assert 64 == by_kind["buffer_pool"] == offloader.buffer_pool.total_bytes
    assert 32 * len(offloaded) == device.memory_stats()["pinned"]["current"]
    assert expected(7, 2) == run_steps(layers, 2)


def test_parameters_are_the_slots_buffers_found_by_address(device):
    offloader = PrefetchOffloader(1, 1, 3)
    layers = build(device, offloader, 7)
    pool = offloader.buffer_pool

    assert pool.slot_capacity == 3
    assert len(layers) == 7
    for module_offloader in offloader.module_offloaders:
        for name, param in module_offloader.module.named_parameters():
            info = ParamInfo.from_tensor(name, param)
            buffer = pool.get_buffer(info, module_offloader.slot_idx)
            assert buffer.data_ptr() == param.data_ptr()
            assert device.space_of(param) == "device"
            assert device.space_of(module_offloader.host_copies[name]) == "pinned"


class Odd(nn.Module):
    """One weight whose shape, stride and dtype are given."""

    def __init__(self, device, shape, dtype, stride=None):
        super().__init__()
        data = device.empty(shape, dtype, stride=stride)
        self.weight = nn.Parameter(data, requires_grad=False)


def test_only_equal_name_shape_stride_and_dtype_share_a_buffer(device):
    shapes = [
        ((2, 4), torch.float32, None),
        ((2, 4), torch.float32, None),
        ((4, 2), torch.float32, None),
        ((2, 4), torch.float32, (1, 2)),
        ((2, 4), torch.bfloat16, None),
    ]
    offloader = PrefetchOffloader(1, 1, 2)
    modules = offloader.wrap_modules(Odd(device, *shape) for shape in shapes)
    offloader.post_init()

    assert offloader.buffer_pool.total_bytes == 2 * (32 + 32 + 32 + 16)
    assert modules[3].weight.stride() == (1, 2)


def test_selectors_leave_other_parameters_and_modules_alone(device):
    offloader = PrefetchOffloader(1, 1, 1, frozenset({"mlp"}))
    layers = offloader.wrap_modules(
        [Layer(device, 0), Odd(device, (4,), torch.float32), Layer(device, 1)]
    )
    offloader.post_init()

    assert [o.module_index for o in offloader.module_offloaders] == [0, 2]
    assert list(offloader.module_offloaders[0].host_copies) == ["mlp.weight"]
    assert device.memory_stats()["device"]["by_kind"] == {"weights": 48, "buffer_pool": 16}
    assert "forward" not in vars(layers[1])
    assert expected(2, 2) == run_steps([layers[0], layers[2]], 2)


def test_a_selector_that_matches_nothing_offloads_nothing(device):
    offloader = PrefetchOffloader(1, 1, 1, frozenset({"ml"}))
    layers = build(device, offloader, 3)

    assert 0 == offloader.total_offloaded_bytes == offloader.buffer_pool.total_bytes
    assert expected(3) == run_steps(layers)


@pytest.mark.parametrize("pin", [True, False])
def test_the_pin_flag_decides_where_host_copies_are(device, pin, monkeypatch):
    monkeypatch.setenv(PIN, "0" if pin else "1")
    offloader = PrefetchOffloader(2, 1, 1)
    layers = build(device, offloader, 4)

    assert pin == offloader.pin_memory
    assert device.memory_stats()["pinned" if pin else "host"]["current"] == 64
    assert device.memory_stats()["host" if pin else "pinned"]["current"] == 0
    copies = [c for o in offloader.module_offloaders for c in o.host_copies.values()]
    assert {pin} == {device.is_pinned(copy) for copy in copies}
    assert expected(4, 2) == run_steps(layers, 2)


@pytest.mark.parametrize(("num_modules", "prefetch_step"), RINGS)
def test_a_refill_keeps_the_slots_owner(num_modules, prefetch_step):
    refill = PrefetchOffloader._get_next_prefetch_index
    after = [refill(i, prefetch_step, num_modules) for i in range(num_modules)]

    assert [i % prefetch_step for i in range(num_modules)] == [n % prefetch_step for n in after]
    assert set(range(num_modules)) == set(after)  # every module is copied once a round


@pytest.mark.parametrize(("num_modules", "prefetch_step"), [(5, 2), (6, 3), (3, 5)])
def test_refills_are_kept_as_they_were_seen(device, num_modules, prefetch_step):
    offloader = PrefetchOffloader(1, 1, prefetch_step)
    layers = build(device, offloader, num_modules)
    assert offloader.refills == {}
    run_steps(layers)

    refill = PrefetchOffloader._get_next_prefetch_index
    assert {
        i: [refill(i, prefetch_step, num_modules)] for i in range(num_modules)
    } == offloader.refills


def test_a_refill_that_forgets_owners_computes_with_wrong_weights(monkeypatch):
    monkeypatch.setattr(
        PrefetchOffloader,
        "_get_next_prefetch_index",
        staticmethod(lambda index, step, num: (index + step) % num),
    )

    assert expected(6, 3) == run_under("in_order", num_layers=6, prefetch_step=2)
    assert expected(5, 3) != run_under("in_order", num_layers=5, prefetch_step=2)


def test_a_removed_wait_for_the_copy_shows_when_copies_are_late(monkeypatch):
    monkeypatch.setattr(ModuleOffloader, "_wait_for_copy", lambda self: None)

    assert expected(6, 3) == run_under("in_order")
    assert expected(6, 3) == run_under("compute_late")
    assert expected(6, 3) != run_under("copy_late")
    assert any(run_under("seeded", seed) != expected(6, 3) for seed in range(5))


def test_a_removed_wait_for_the_reader_shows_when_compute_is_late(monkeypatch):
    monkeypatch.setattr(ModuleOffloader, "_wait_for_reader", lambda self: None)

    assert expected(6, 3) == run_under("in_order")
    assert expected(6, 3) == run_under("copy_late")
    assert expected(6, 3) != run_under("compute_late")
    assert any(run_under("seeded", seed) != expected(6, 3) for seed in range(5))


def test_one_offloader_of_one_module_can_lose_its_wait(device):
    with device_in_use(schedule="copy_late") as late:
        offloader = PrefetchOffloader(1, 1, 2)
        layers = build(late, offloader, 6)
        offloader.module_offloaders[3]._wait_for_copy = lambda: None

        assert expected(6, 2) != run_steps(layers, 2)


def test_a_refill_that_changes_is_kept_beside_the_first(device, monkeypatch):
    offloader = PrefetchOffloader(1, 1, 2)
    layers = build(device, offloader, 4)
    run_steps(layers)
    monkeypatch.setattr(offloader, "_get_next_prefetch_index", lambda *_: 1)
    run_steps(layers, 2)

    assert offloader.refills == {0: [2, 1], 1: [3, 1], 2: [0, 1], 3: [1]}


def test_weights_loaded_after_wrapping_are_used(device):
    offloader = PrefetchOffloader(2, 1, 1)
    layers = offloader.wrap_modules(Layer(device, idx + 50) for idx in range(4))
    for idx, layer in enumerate(layers):
        layer.attn.weight.data.copy_(torch.full((4,), 7.0 * idx + 1))
        # a loader that replaces the storage instead of writing into it
        layer.mlp.weight.data = device.to(torch.full((4,), 11.0 * idx + 2), "host")
    offloader.post_init()

    assert expected(4, 2) == run_steps(layers, 2)
    assert device.memory_stats()["pinned"]["current"] == 64
    assert device.space_of(offloader.module_offloaders[0].host_copies["mlp.weight"]) == "pinned"


def test_a_stack_that_does_not_fit_fits_when_offloaded():
    with device_in_use(capacity_bytes=80) as device:
        with pytest.raises(OutOfDeviceMemoryError):
            [Layer(device, idx) for idx in range(8)]
        device.reset_peak_memory_stats()
        layers = build(device, PrefetchOffloader(1, 1, 2), 8)

        assert expected(8, 3) == run_steps(layers, 3)
        assert device.memory_stats()["device"]["peak"] == 64


def test_modules_are_wrapped_once(device):
    offloader = PrefetchOffloader(1)
    offloader.wrap_modules([])

    with pytest.raises(RuntimeError, match="wrap_modules was called before"):
        offloader.wrap_modules([])


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"group_size": 0}, "offload_group_size=0 must be >= 1"),
        ({"group_size": 2, "num_in_group": 3}, "offload_num_in_group=3 must be between 1 and"),
        ({"group_size": 2, "num_in_group": 0}, "offload_num_in_group=0 must be between 1 and"),
        ({"group_size": 2, "prefetch_step": 0}, "offload_prefetch_step=0 must be >= 1"),
        ({"group_size": 2, "mode": "disk"}, "mode='disk' must be 'cpu'"),
    ],
)
def test_impossible_numbers_are_refused(kwargs, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        PrefetchOffloader(**kwargs)


def test_nothing_is_left_when_everything_is_dropped(device):
    gc.disable()
    try:
        offloader = PrefetchOffloader(2, 1, 2)
        layers = build(device, offloader, 5)
        run_steps(layers)
        device.synchronize()
        del offloader
        assert expected(5) == run_steps(layers)  # layers keep their offloader
        del layers
        stats = device.memory_stats()
        assert [stats[s]["current"] for s in ("device", "pinned", "host")] == [0, 0, 0]
    finally:
        gc.enable()


def test_an_offloader_outlives_its_layers(device):
    offloader = PrefetchOffloader(1, 1, 1)
    build(device, offloader, 2)
    device.synchronize()

    with pytest.raises(RuntimeError, match="module 1 of the stack was dropped"):
        _ = offloader.module_offloaders[1].module
    offloader.shutdown()
    assert device.memory_stats()["device"]["current"] == 0


def test_shutdown_drops_hooks_pool_and_copies(device):
    offloader = PrefetchOffloader(2, 1, 2)
    layers = build(device, offloader, 5)
    run_steps(layers)
    offloader.shutdown()

    assert device.memory_stats()["device"]["by_kind"] == {"weights": 96}
    assert device.memory_stats()["pinned"]["current"] == 0
    assert offloader.buffer_pool is None
    assert not any("forward" in vars(layer) for layer in layers)
    offloader.shutdown()
