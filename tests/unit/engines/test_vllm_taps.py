from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harness.engines.base import InternalMovedError
from harness.engines.vllm import taps
from harness.engines.vllm.device import LiveDevice
from harness.engines.vllm.modules import VllmModules
from tests.stand_in_vllm import install_vllm

COPY = torch.Tensor.copy_


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setattr(taps, "REFILLS", {})
    monkeypatch.setattr(taps, "_last", [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return install_vllm(monkeypatch)


class Witness:
    """An observer that keeps sites and names of what compute and copies touch."""

    def __init__(self):
        self.copies, self.reads = [], []

    def on_copy(self, work):
        self.copies.append(work)

    def on_launch(self, work):
        self.reads.append((work.site, [tensor.param_name for tensor in work.reads]))

    def on_run(self, work):
        """Told with its launch."""


@pytest.fixture
def device():
    made = LiveDevice("cpu")
    made.observers.append(Witness())
    return made


def quiet_stream(handle=0):
    return SimpleNamespace(
        cuda_stream=handle, wait_event=lambda _: None, record_event=lambda _: None
    )


def offloader_of(vllm, num=3, step=2):
    """A prefetch offloader whose modules only have what hooks and copies need."""
    made = vllm.offloader_prefetch.PrefetchOffloader(step)
    made.copy_stream = quiet_stream()
    for index in range(num):
        one = object.__new__(vllm.offloader_prefetch._ModuleOffloader)
        one.layer_idx, one.copy_stream, one._copy_done_event = index, made.copy_stream, None
        storage, buffer = torch.full((4,), float(index)), torch.zeros(4)
        one._param_offloaders = {
            "weight": SimpleNamespace(_cpu_storage=storage, _gpu_buffer=buffer)
        }
        made.module_offloaders.append(one)
    return made


def run_through(vllm, offloader, rounds=1):
    next_index = vllm.offloader_prefetch._get_next_prefetch_index
    num, step = len(offloader.module_offloaders), offloader.prefetch_step
    for index in list(range(num)) * rounds:
        offloader._wait_for_layer(index)
        offloader._start_prefetch(next_index(index, step, num))


def test_refills_are_noted_as_they_are_started(vllm):
    taps.note_refills(VllmModules())

    run_through(vllm, offloader_of(vllm, num=4, step=2), rounds=3)

    assert {0: [2], 1: [3], 2: [0], 3: [1]} == taps.REFILLS


def test_every_other_target_that_was_ever_seen_is_noted(vllm):
    taps.note_refills(VllmModules())
    offloader = offloader_of(vllm)

    offloader._wait_for_layer(1)
    for target in (2, 0, 2):
        offloader._start_prefetch(target)

    assert {1: [2, 0]} == taps.REFILLS


def test_copies_before_any_compute_refill_nothing(vllm):
    taps.note_refills(VllmModules())

    offloader_of(vllm)._start_prefetch(0)

    assert {} == taps.REFILLS


def test_a_noted_refill_is_still_made(vllm):
    taps.note_refills(VllmModules())
    offloader = offloader_of(vllm)

    run_through(vllm, offloader)

    for index, one in enumerate(offloader.module_offloaders):
        assert [float(index)] * 4 == one._param_offloaders["weight"]._gpu_buffer.tolist()


def test_each_copy_into_a_slot_is_led_through_the_device(vllm, device):
    taps.tap_copies(VllmModules(), device)
    offloader = offloader_of(vllm)

    offloader.module_offloaders[2].start_onload_to_static()

    each = offloader.module_offloaders[2]._param_offloaders["weight"]
    (work,) = device.observers[0].copies
    assert "prefetch of module 2" == work.site
    assert work.reads[0] is each._cpu_storage
    assert work.writes[0] is each._gpu_buffer
    assert [2.0] * 4 == each._gpu_buffer.tolist()
    assert device.allocation_of(each._gpu_buffer) is not None


def test_copies_outside_are_torchs_own(vllm, device):
    taps.tap_copies(VllmModules(), device)
    offloader_of(vllm).module_offloaders[0].start_onload_to_static()

    torch.zeros(2).copy_(torch.ones(2))

    assert torch.Tensor.copy_ is COPY
    assert 1 == len(device.observers[0].copies)


def test_torchs_copy_is_put_back_also_after_an_error(vllm, device):
    taps.tap_copies(VllmModules(), device)
    one = offloader_of(vllm).module_offloaders[0]
    one._param_offloaders["weight"]._gpu_buffer = torch.zeros(3)  # of another size

    with pytest.raises(RuntimeError, match="size"):
        one.start_onload_to_static()

    assert torch.Tensor.copy_ is COPY


def test_on_cuda_the_copy_stream_is_known_by_its_handle(vllm):
    device = LiveDevice("cuda")
    device.current_stream = lambda: None
    taps.tap_copies(VllmModules(), device)
    offloader = offloader_of(vllm)
    offloader.copy_stream.cuda_stream = 7

    offloader.module_offloaders[0].start_onload_to_static()

    assert "copy" == device.stream_of(SimpleNamespace(cuda_stream=7)).name


@pytest.mark.parametrize(
    ("owner", "name", "tap"),
    [
        ("PrefetchOffloader", "_wait_for_layer", taps.note_refills),
        ("_ModuleOffloader", "start_onload_to_static", taps.note_refills),
        ("_ModuleOffloader", "start_onload_to_static", lambda m: taps.tap_copies(m, None)),
    ],
)
def test_a_method_that_moved_is_named(vllm, owner, name, tap):
    delattr(getattr(vllm.offloader_prefetch, owner), name)

    with pytest.raises(InternalMovedError, match=f"^{owner}.{name}$"):
        tap(VllmModules())


class LogitsProcessor(nn.Module):
    """Has no parameter: the output matrix is handed to it."""

    def forward(self, lm_head, hidden):
        return hidden @ lm_head.weight.T


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, bias=False)])
        self.model.act = nn.ReLU()
        self.lm_head = nn.Linear(2, 3, bias=False)
        self.logits_processor = LogitsProcessor()

    def forward(self, hidden):
        for layer in self.model.layers:
            hidden = self.model.act(layer(hidden))
        return self.logits_processor(self.lm_head, hidden)


def test_what_compute_reads_is_told_by_name_in_the_order_it_is_read(device):
    model = Model()
    taps.watch_reads(model, device)

    with torch.no_grad():
        model(torch.ones(1, 2))

    assert [
        ("model.layers.0", ["model.layers.0.weight", "model.layers.0.bias"]),
        ("model.layers.1", ["model.layers.1.weight"]),
        ("lm_head", ["lm_head.weight"]),
    ] == device.observers[0].reads


def test_reads_are_told_of_where_the_bytes_are_now(device):
    model = Model()
    taps.watch_reads(model, device)
    seen = []
    device.observers[0].on_launch = lambda work: seen.extend(t.data_ptr() for t in work.reads)
    moved = torch.zeros(2, 2)
    model.model.layers[1].weight.data = moved

    with torch.no_grad():
        model(torch.ones(1, 2))

    assert moved.data_ptr() in seen
