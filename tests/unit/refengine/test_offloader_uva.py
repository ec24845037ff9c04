import gc

import pytest
import torch
from offload_toys import Layer, build, device_in_use, expected, run_steps

from harness.refengine.device import OutOfDeviceMemoryError
from harness.refengine.offloader import UVAOffloader

PIN = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
UVA = "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA"
BIG = 1 << 30


@pytest.fixture(params=[False, True], ids=["uva1", "uva0"])
def copies(request, monkeypatch):
    """True when views are forbidden, so that each forward copies."""
    monkeypatch.setenv(UVA, str(int(request.param)))
    return request.param


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.delenv(PIN, raising=False)
    monkeypatch.delenv(UVA, raising=False)
    with device_in_use() as device:
        yield device


def bytes_in_use(device):
    stats = device.memory_stats()
    return {s: stats[s]["current"] for s in ("device", "pinned", "host") if stats[s]["current"]}


@pytest.mark.parametrize("pin", [True, False])
def test_the_result_is_right_and_the_bytes_are_where_they_were_asked(
    device, copies, pin, monkeypatch
):
    monkeypatch.setenv(PIN, "0" if pin else "1")
    offloader = UVAOffloader(BIG)
    layers = build(device, offloader, 3)

    assert expected(3, steps=2) == run_steps(layers, steps=2)
    assert {"pinned" if pin else "host": 96} == bytes_in_use(device)
    assert offloader.cpu_offload_bytes == 96
    assert pin == offloader.pin_memory
    assert copies != offloader.uva_offloading
    for layer in layers:
        for param in layer.parameters():
            assert pin == device.is_pinned(param)
            assert copies != getattr(param, "_vllm_is_uva_offloaded", False)
            assert param.data_ptr() == param._vllm_offloaded_cpu_data.data_ptr()


@pytest.mark.parametrize(
    ("budget", "offloaded"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2), (33, 3), (96, 6), (999, 6)]
)
def test_the_budget_is_overshot_by_one_parameter_at_most(device, copies, budget, offloaded):
    offloader = UVAOffloader(budget)
    layers = build(device, offloader, 3)
    params = [p for layer in layers for p in layer.parameters()]

    assert [True] * offloaded + [False] * (6 - offloaded) == [device.is_pinned(p) for p in params]
    assert 16 * offloaded == offloader.cpu_offload_bytes
    assert 96 - 16 * offloaded == device.memory_stats()["device"]["current"]
    assert expected(3) == run_steps(layers)


def test_selectors_choose_whole_segments(device, copies):
    offloader = UVAOffloader(BIG, frozenset({"mlp"}))
    layers = build(device, offloader, 2)

    assert list(offloader.host_copies) == ["0.mlp.weight", "1.mlp.weight"]
    assert expected(2) == run_steps(layers)
    nothing = UVAOffloader(BIG, frozenset({"ml", "mlp.bias"}))
    build(device, nothing, 2)
    assert nothing.cpu_offload_bytes == 0


def test_weights_loaded_after_wrapping_are_used(device, copies):
    layers = build(device, UVAOffloader(BIG), 3)
    for idx, layer in enumerate(layers):
        layer.attn.weight.data.copy_(torch.full((4,), 7.0 * idx + 8))

    assert expected(3) != run_steps(layers)
    for idx, layer in enumerate(layers):
        layer.attn.weight.data.copy_(torch.full((4,), 7.0 * idx + 1))
    assert expected(3) == run_steps(layers)


def test_a_stack_that_does_not_fit_fits_when_offloaded(copies):
    with device_in_use(capacity_bytes=80) as device:
        with pytest.raises(OutOfDeviceMemoryError):
            [Layer(device, idx) for idx in range(8)]
        layers = build(device, UVAOffloader(BIG), 8)

        assert expected(8, steps=3) == run_steps(layers, steps=3)
        assert device.memory_stats()["device"]["peak"] <= 80


def test_copies_on_forward_are_fresh_state_that_dies_with_the_layer(device, monkeypatch):
    monkeypatch.setenv(UVA, "1")
    layers = build(device, UVAOffloader(16), 1)
    pending = layers[0](torch.ones(4))

    assert device.memory_stats()["device"]["by_kind"] == {"state": 16, "weights": 16}
    pending.result()
    assert device.memory_stats()["device"]["by_kind"] == {"weights": 16}


def test_forward_hooks_run_once(device, copies):
    layers = build(device, UVAOffloader(BIG), 1)
    calls = []
    layers[0].register_forward_hook(lambda *_: calls.append(1))
    layers[0](torch.ones(4)).result()

    assert calls == [1]


def test_unpinned_memory_is_copied_where_a_view_needs_pinned(device, monkeypatch):
    device.uva_needs_pinned = True
    assert UVAOffloader(BIG).uva_offloading
    monkeypatch.setenv(PIN, "1")
    offloader = UVAOffloader(BIG)
    layers = build(device, offloader, 2)

    assert not offloader.uva_offloading
    assert bytes_in_use(device) == {"host": 64}
    assert expected(2) == run_steps(layers)


def test_a_device_without_views_copies(device):
    device.uva_available = False

    assert not UVAOffloader(BIG).uva_offloading


def test_nothing_is_left_when_the_layers_are_dropped(device, copies):
    gc.disable()
    try:
        offloader = UVAOffloader(BIG)
        layers = build(device, offloader, 3)
        run_steps(layers)
        del offloader, layers
        assert bytes_in_use(device) == {}
    finally:
        gc.enable()


def test_shutdown_drops_hooks_and_copies(device, copies):
    offloader = UVAOffloader(40)
    layers = build(device, offloader, 3)
    run_steps(layers)
    offloader.shutdown()

    assert bytes_in_use(device) == {"device": 48}
    assert not any("forward" in vars(layer) for layer in layers)
    assert offloader.host_copies == {}
    offloader.shutdown()
