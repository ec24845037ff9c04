from types import SimpleNamespace

import pytest
import torch
from offload_toys import Layer, device_in_use, expected, run_steps

from harness.refengine.device import set_current_device
from harness.refengine.offloader import (
    NoopOffloader,
    PrefetchOffloader,
    UVAOffloader,
    create_offloader,
    get_offloader,
    set_offloader,
    should_pin_memory,
)
from harness.refengine.offloader.base import is_selected
from harness.refengine.offloader.forward import replace_forward

PIN = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
FIELDS = {
    "offload_backend": "auto",
    "cpu_offload_gb": 0.0,
    "cpu_offload_params": frozenset(),
    "offload_group_size": 0,
    "offload_num_in_group": 1,
    "offload_prefetch_step": 1,
    "offload_params": frozenset(),
}


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.delenv(PIN, raising=False)
    with device_in_use() as device:
        yield device


def create(**fields):
    return create_offloader(SimpleNamespace(**{**FIELDS, **fields}))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, NoopOffloader),
        ({"cpu_offload_gb": 1}, UVAOffloader),
        ({"offload_group_size": 2}, PrefetchOffloader),
        ({"offload_group_size": 2, "cpu_offload_gb": 1}, PrefetchOffloader),
        ({"offload_backend": "uva", "offload_group_size": 2}, UVAOffloader),
        (
            {"offload_backend": "prefetch", "offload_group_size": 2, "cpu_offload_gb": 1},
            PrefetchOffloader,
        ),
    ],
)
def test_the_backend_is_chosen_as_asked(fields, kind):
    assert kind is type(create(**fields))


def test_every_field_reaches_the_offloader():
    uva = create(cpu_offload_gb=0.5, cpu_offload_params={"mlp"})
    assert (1 << 29, {"mlp"}) == (uva.cpu_offload_max_bytes, uva.cpu_offload_params)
    prefetch = create(
        offload_group_size=4,
        offload_num_in_group=3,
        offload_prefetch_step=2,
        offload_params={"attn"},
    )
    assert (4, 3, 2, {"attn"}) == (
        prefetch.group_size,
        prefetch.num_in_group,
        prefetch.prefetch_step,
        prefetch.offload_params,
    )


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="offload_backend='disk' must be one of auto, uva"):
        create(offload_backend="disk")


def test_the_process_has_one_offloader_and_none_at_first():
    assert isinstance(get_offloader(), NoopOffloader)
    offloader = create(cpu_offload_gb=1)
    set_offloader(offloader)
    assert offloader is get_offloader()


def test_the_noop_offloader_changes_nothing(device):
    offloader = NoopOffloader()
    layers = offloader.wrap_modules(Layer(device, idx) for idx in range(3))
    offloader.post_init()

    assert expected(3) == run_steps(layers)
    assert device.memory_stats()["device"]["by_kind"] == {"weights": 96}
    offloader.shutdown()


def test_pinning_needs_a_device_that_can_and_nobody_against(device, monkeypatch):
    assert should_pin_memory()
    monkeypatch.setenv(PIN, "1")
    assert not should_pin_memory()
    monkeypatch.setenv(PIN, "0")
    device.pin_memory_available = False
    assert not should_pin_memory()
    set_current_device(None)
    with pytest.raises(RuntimeError, match="no current device"):
        should_pin_memory()


@pytest.mark.parametrize(
    ("name", "selectors", "selected"),
    [
        ("mlp.gate.weight", (), True),
        ("mlp.gate.weight", ("mlp",), True),
        ("mlp.gate.weight", ("gate.weight",), True),
        ("mlp.gate.weight", ("attn", "weight"), True),
        ("mlp.gate.weight", ("gat",), False),
        ("mlp.gate.weight", ("lp",), False),
        ("mlp.gate.weight", ("mlp.weight",), False),
    ],
)
def test_selectors_are_whole_dot_segments(name, selectors, selected):
    assert selected == is_selected(name, frozenset(selectors))


class Adder(torch.nn.Module):
    def forward(self, x):
        return x + 1


def test_a_forward_is_replaced_for_one_module_and_restored():
    module, other = Adder(), Adder()
    first = replace_forward(module, lambda original: lambda x: 10 * original(x))
    second = replace_forward(module, lambda original: lambda x: original(x) + 5)

    assert [module(1), other(1)] == [25, 2]
    second()
    assert module(1) == 20
    first()
    assert module(1) == 2
    assert "forward" not in vars(module)
    del module
    first()  # nothing left to restore
