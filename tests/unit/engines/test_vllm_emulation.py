import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.engines.base import InternalMovedError
from harness.engines.vllm import emulation
from tests.stand_in_vllm import install_vllm
from tests.stand_in_vllm.worker import Layer


@pytest.fixture
def vllm(monkeypatch):
    """Stand-ins, and an emulation that has not been installed and leaves nothing behind."""
    monkeypatch.setattr(emulation, "_is_on", [])
    monkeypatch.setattr(emulation, "_host", {})
    capturing = torch.cuda.is_current_stream_capturing
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    return install_vllm(monkeypatch)


def layers(num=3):
    return [Layer(i + 1.0) for i in range(num)]


def test_without_it_vllm_refuses_parameters_on_a_cpu(vllm):
    with pytest.raises(AssertionError, match="should not already be on CPU"):
        vllm.offloader_prefetch.PrefetchOffloader(2).wrap_modules(layers())
    uva = vllm.offloader_uva.UVAOffloader(1000, uva=False)
    uva.wrap_modules(layers())

    assert 0 == uva.cpu_offload_bytes
    assert not emulation.is_on()


def test_prefetch_computes_from_slots_that_it_refills(vllm):
    emulation.install()
    offloader = vllm.offloader_prefetch.PrefetchOffloader(2)
    wrapped = offloader.wrap_modules(layers())
    offloader.post_init()

    for _ in range(2):
        outputs = [layer(torch.ones(1, 3)).tolist() for layer in wrapped]

        assert [[[3.0 * (i + 1)] * 3] for i in range(3)] == outputs
    assert 3 * 9 * 4 == offloader.total_offloaded_bytes


def test_the_bytes_of_record_are_in_memory_that_stands_for_the_hosts(vllm):
    emulation.install()
    offloader = vllm.offloader_prefetch.PrefetchOffloader(2)
    wrapped = offloader.wrap_modules(layers())
    offloader.post_init()

    for one, layer in zip(offloader.module_offloaders, wrapped, strict=True):
        (each,) = one._param_offloaders.values()
        assert emulation.is_host(each._cpu_storage)
        assert not emulation.is_host(layer.mlp.weight.data)


def test_uva_views_are_the_hosts_memory_up_to_the_budget(vllm):
    emulation.install()
    offloader = vllm.offloader_uva.UVAOffloader(50)
    wrapped = offloader.wrap_modules(layers())

    assert offloader.uva_offloading
    assert [True, True, False] == [emulation.is_host(m.mlp.weight.data) for m in wrapped]
    assert 72 == offloader.cpu_offload_bytes
    assert wrapped[0].mlp.weight._vllm_is_uva_offloaded
    assert [[6.0] * 3] == wrapped[1](torch.ones(1, 3)).tolist()


def test_copies_on_forward_compute_from_the_devices_memory(vllm):
    emulation.install()
    offloader = vllm.offloader_uva.UVAOffloader(1000, uva=False)
    (layer,) = offloader.wrap_modules(layers(1))
    seen = []
    layer.mlp.register_forward_pre_hook(lambda module, _: seen.append(module.weight))

    assert [[3.0] * 3] == layer(torch.ones(1, 3)).tolist()
    assert emulation.is_host(layer.mlp.weight.data)
    assert [False] == [emulation.is_host(weight) for weight in seen]


def test_a_parameter_that_is_away_is_not_taken_twice(vllm):
    emulation.install()
    offloader = vllm.offloader_uva.UVAOffloader(1000)
    wrapped = offloader.wrap_modules(layers(1))
    offloader.wrap_modules(wrapped)

    assert 36 == offloader.cpu_offload_bytes


def test_linear_weights_are_not_packed_wherever_the_packing_was_imported(vllm):
    user = importlib.util.module_from_spec(importlib.util.spec_from_loader("user", None))
    user.dispatch_cpu_unquantized_gemm = vllm.layers_utils.dispatch_cpu_unquantized_gemm
    sys.modules["user"] = user
    try:
        emulation.install()
    finally:
        del sys.modules["user"]
    layer = nn.Linear(3, 2)

    user.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert (2, 3) == tuple(layer.weight.shape)
    expected = layer(torch.ones(1, 3))
    assert torch.equal(expected, layer.cpu_linear(torch.ones(1, 3), layer.weight, layer.bias))


def test_runner_v1_finishes_loading_as_v2_does(vllm):
    emulation.install()
    offloader = vllm.offloader_prefetch.PrefetchOffloader(2)
    offloader.wrap_modules(layers())
    runner = vllm.runner_cpu_v1.CPUModelRunner(None, offloader)

    assert runner.load_model(load_dummy_weights=True)
    assert 2 == offloader.buffer_pool.slot_capacity


def test_installing_twice_is_once(vllm):
    emulation.install()
    init = vllm.offloader_prefetch._ModuleOffloader.__init__
    emulation.install()

    assert emulation.is_on()
    assert vllm.offloader_prefetch._ModuleOffloader.__init__ is init
    assert "cpu" == emulation.device_name()
    assert torch.cuda.is_current_stream_capturing() is False


def unguarded(self, module, copy_stream, layer_idx):
    self.module = module


def unasked(self, module, prefix=""):
    return module


@pytest.mark.parametrize(
    ("owner", "name", "other", "said"),
    [
        ("offloader_prefetch._ModuleOffloader", "__init__", unguarded, "place to emulate"),
        ("offloader_uva.UVAOffloader", "_maybe_offload_to_cpu", unasked, "place to emulate"),
        ("offloader_prefetch._CpuParamOffloader", "_offload_to_cpu_internal", None, ""),
        ("offloader_prefetch._CpuParamOffloader", "_update_cpu_storage_from_param", None, ""),
        ("layers_utils", "dispatch_cpu_unquantized_gemm", None, ""),
        ("runner_cpu_v1.CPUModelRunner", "load_model", None, ""),
    ],
)
def test_a_place_that_is_gone_is_named(vllm, owner, name, other, said):
    found = vllm
    for part in owner.split("."):
        found = getattr(found, part)
    if other is not None:
        setattr(found, name, other)
    elif name == "load_model":
        for cls in found.__mro__[:2]:
            delattr(cls, name)
    else:
        delattr(found, name)

    with pytest.raises(InternalMovedError, match=name) as caught:
        emulation.install()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("place", "moved", "said"),
    [
        ('device == torch.device("cpu")', 'device.type == "cpu"', "device == torch.device('cpu')"),
        ('if p.device.type == "cpu" or', "if p.is_cpu or", "p.device.type == 'cpu'"),
        ('p.data.to(device="cpu")', "p.data.cpu()", "p.data.to(device='cpu')"),
        ("v.to(device, non_blocking=True)", "v.to(device)", "v.to(device, non_blocking=True)"),
    ],
)
def test_an_edit_of_which_one_place_is_gone_names_it_and_changes_nothing(
    vllm, tmp_path, monkeypatch, place, moved, said
):
    text = Path(vllm.offloader_uva.__file__).read_text()
    assert 1 == text.count(place)
    (tmp_path / "uva_moved.py").write_text(text.replace(place, moved))
    other = runpy.run_path(str(tmp_path / "uva_moved.py"))["UVAOffloader"]
    method = other._maybe_offload_to_cpu
    monkeypatch.setattr(vllm.offloader_uva, "UVAOffloader", other)

    with pytest.raises(InternalMovedError) as caught:
        emulation.install()

    where = "UVAOffloader._maybe_offload_to_cpu, the place to emulate in it"
    assert f"{where}: `{said}`" == str(caught.value)
    assert other._maybe_offload_to_cpu is method


def test_stand_in_streams_have_done_everything_at_once():
    stream = emulation.StandInStream()

    with stream as current:
        current.wait_event(object())
        current.record_event(object())
        current.wait_stream(stream)
    assert stream.query()


def test_copies_that_stand_for_the_device_are_copies(vllm):
    emulation.install()
    host = emulation.to_host(torch.ones(2))
    here = torch.ones(2)

    assert emulation.is_host(host)
    assert not emulation.is_host(emulation.to_device(host))
    assert emulation.to_device(here) is here
