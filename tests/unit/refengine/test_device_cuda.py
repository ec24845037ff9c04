import subprocess
import sys
from pathlib import Path

import pytest
import torch
from offload_toys import WIDTH, build, expected

from harness.refengine.device import get_device, set_current_device
from harness.refengine.device.base import Device, Event, Pending, Stream
from harness.refengine.offloader import PrefetchOffloader, UVAOffloader

ROOT = Path(__file__).parents[3]
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_the_module_loads_without_touching_a_gpu():
    code = (
        "import torch, harness.refengine.device.cuda as c; assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_abstract_method_is_there():
    from harness.refengine.device import cuda

    for concrete, base in (
        (cuda.CudaDevice, Device),
        (cuda.CudaStream, Stream),
        (cuda.CudaEvent, Event),
        (cuda.Launched, Pending),
    ):
        assert issubclass(concrete, base)
        assert not concrete.__abstractmethods__


@needs_no_gpu
def test_without_a_gpu_the_refusal_says_what_to_use():
    with pytest.raises(RuntimeError, match="needs a CUDA device and driver; use 'simulated'"):
        get_device("cuda")


def test_a_schedule_cannot_be_asked_of_hardware():
    with pytest.raises(ValueError, match="schedule='copy_late' cannot be chosen on device='cuda'"):
        get_device("cuda", schedule="copy_late")


def test_a_storage_reports_its_death_only_after_the_last_tensor():
    # the cuda ledger relies on this: a storage's Python object lives as long as its memory
    from harness.refengine.device.memory import Ledger

    ledger = Ledger()
    tensor = torch.empty(10)
    ledger.add(tensor.untyped_storage(), address=1, num_bytes=40, space="device", kind="weights")
    view = torch.nn.Parameter(tensor[2:])
    del tensor
    assert ledger.stats()["device"]["current"] == 40
    del view
    assert ledger.stats()["device"]["current"] == 0


@needs_gpu
def test_bytes_are_exact_and_gone_with_the_last_tensor_on_cuda():
    device = get_device("cuda", capacity_bytes=1 << 20)
    tensor = device.empty((3, 5), torch.bfloat16)
    pinned = device.to(torch.ones(7), "pinned")

    assert tensor.is_cuda
    assert pinned.is_pinned()
    assert [device.memory_stats()[s]["current"] for s in ("device", "pinned")] == [30, 28]
    assert device.is_pinned(pinned)
    view = tensor[1:]
    del tensor, pinned
    assert [device.memory_stats()[s]["current"] for s in ("device", "pinned")] == [30, 0]
    del view
    assert device.memory_stats()["device"]["current"] == 0
    with pytest.raises(RuntimeError, match="out of device memory: asked for 2097152 bytes"):
        device.empty((1 << 20,), torch.bfloat16)


@needs_gpu
def test_a_uva_view_reads_and_keeps_the_pinned_bytes_on_cuda():
    device = get_device("cuda")
    host = device.to(torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(), "pinned")
    view = device.uva_view(host)

    assert view.is_cuda
    assert device.space_of(view) == "pinned"
    assert host.stride() == view.stride()
    assert host.tolist() == (view + 0).tolist()
    host.mul_(2)
    assert host.tolist() == (view + 0).tolist()
    view.add_(1)
    device.synchronize()
    assert host.tolist() == (view + 0).tolist()
    expected = host.tolist()
    del host
    assert device.memory_stats()["pinned"]["current"] == 12
    assert expected == (view + 0).tolist()
    del view
    assert device.memory_stats()["pinned"]["current"] == 0
    with pytest.raises(ValueError, match="needs pinned memory"):
        device.uva_view(device.to(torch.ones(2), "host"))


@needs_gpu
def test_streams_and_events_order_copies_on_cuda():
    device = get_device("cuda")
    host = device.to(torch.full((1 << 22,), 3.0), "pinned")
    buffer = device.empty(host.shape, host.dtype)
    copy_stream, event = device.new_stream("copy"), device.new_event("done")
    assert event.query()
    for value in range(4):
        host.fill_(value)
        copy_stream.wait_stream(device.current_stream())
        with device.stream(copy_stream) as inside:
            assert inside is device.current_stream()
            device.copy_async(buffer, host)
            copy_stream.record_event(event)
        device.current_stream().wait_event(event)
        total = device.launch(torch.sum, buffer, reads=(buffer,))
        assert float(value << 22) == device.launch(float, total).result()


@needs_gpu
@pytest.mark.parametrize("pin", ["0", "1"])
@pytest.mark.parametrize("make", ["uva", "uva0", "prefetch"])
def test_offloaded_layers_compute_the_same_on_cuda(make, pin, monkeypatch):
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY", pin)
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "1" if make == "uva0" else "0")
    device = get_device("cuda")
    set_current_device(device)
    try:
        offloader = PrefetchOffloader(1, 1, 2) if make == "prefetch" else UVAOffloader(1 << 20)
        layers = build(device, offloader, 5)
        x = device.to(torch.ones(WIDTH), "device", kind="state")
        for _ in range(3):
            for layer in layers:
                x = layer(x)
        actual = x.result().tolist()
    finally:
        set_current_device(None)

    assert actual == expected(5, 3)
    if make != "prefetch":
        assert offloader.uva_offloading == (make == "uva" and pin == "0")
    stats = device.memory_stats()
    assert stats["host" if pin == "1" else "pinned"]["current"] == 160
    assert stats["device"]["by_kind"].get("weights", 0) == 0
    del layers, layer, x, offloader
    assert [device.memory_stats()[s]["current"] for s in ("device", "pinned", "host")] == [0, 0, 0]
