from types import SimpleNamespace

import pytest
import torch

from harness.engines.vllm import device as module
from harness.engines.vllm.device import LiveDevice
from harness.observe.ordering import OrderingRecorder


class Witness:
    """An observer that keeps what it was told, in order."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args: self.told.append((name, *args))

    @property
    def names(self):
        return [each[0] for each in self.told]


def raw_stream(handle):
    return SimpleNamespace(cuda_stream=handle)


@pytest.fixture
def device():
    made = LiveDevice("cpu")
    made.observers.append(Witness())
    return made


@pytest.fixture
def witness(device):
    return device.observers[0]


def test_work_is_told_before_it_is_done(device, witness):
    seen = []
    weight = torch.ones(2)

    device.launch(lambda: seen.append(witness.names), reads=(weight,), site="model.layers.0")

    assert [["on_launch", "on_run"]] == seen
    work = witness.told[0][1]
    assert work is witness.told[1][1]
    assert ("model.layers.0", False) == (work.site, work.is_copy)
    assert work.reads[0] is weight
    assert work.stream is device.current_stream()


def test_arguments_reach_the_work(device):
    target = torch.zeros(3)

    device.launch(torch.Tensor.fill_, target, 2.0, writes=(target,))

    assert [2.0] * 3 == target.tolist()


def test_a_copy_is_made_and_told_with_both_sides(device, witness):
    source, slot = torch.arange(4.0), torch.zeros(4)

    device.copy_async(slot, source, site="prefetch of module 1")

    assert source.tolist() == slot.tolist()
    (told,) = witness.told
    assert ("on_copy", True) == (told[0], told[1].is_copy)
    assert told[1].reads[0] is source
    assert told[1].writes[0] is slot


def test_a_copy_into_a_parameter_needs_no_gradient(device):
    weight = torch.nn.Parameter(torch.zeros(2))

    device.copy_async(weight, torch.ones(2))

    assert [1.0, 1.0] == weight.tolist()


def test_a_read_is_work_that_somebody_else_queues(device, witness):
    weight = torch.ones(2)

    device.read([weight], site="model.norm")

    assert ["on_launch", "on_run"] == witness.names
    assert witness.told[0][1].reads[0] is weight


def test_pieces_of_work_are_numbered_in_the_order_they_are_queued(device, witness):
    for _ in range(3):
        device.read([], site="x")
    device.copy_async(torch.zeros(1), torch.zeros(1))

    numbers = [told[1].seq for told in witness.told if told[0] != "on_run"]
    assert [1, 2, 3, 4] == numbers


def test_memory_of_the_pool_is_known_by_its_storage(device):
    buffer, other = torch.zeros(8), torch.zeros(8)

    device.adopt(buffer)
    found = device.allocation_of(buffer[4:])

    assert ("buffer_pool", buffer.data_ptr()) == (found.kind, found.address)
    assert found.owner() is not None
    assert device.allocation_of(other) is None


def test_memory_adopted_twice_is_one_allocation(device):
    buffer = torch.zeros(8)
    device.adopt(buffer)
    found = device.allocation_of(buffer)

    device.adopt(buffer.view(2, 4))

    assert device.allocation_of(buffer) is found


def test_streams_are_one_object_for_each_handle(device):
    first, again, other = (device.stream_of(raw_stream(h)) for h in (7, 7, 9))

    assert first is again
    assert first is not other
    assert ["compute", "stream 1"] == [first.name, other.name]


def test_a_stream_may_be_named_when_it_is_first_seen(device):
    copying = device.stream_of(raw_stream(7), name="copy")
    computing = device.stream_of(raw_stream(0))

    assert ["copy", "compute"] == [copying.name, computing.name]
    assert copying is device.stream_of(raw_stream(7))


def test_where_there_is_no_cuda_there_is_one_stream(device):
    assert device.current_stream() is device.stream_of(None)


def test_events_are_told_with_the_stream_they_are_about(device, witness):
    event, raw = object(), raw_stream(7)

    device.on_record(event, raw)
    device.on_wait(event, None)
    device.on_host_wait(event)

    copying, computing = device.stream_of(raw), device.current_stream()
    assert [
        ("on_record", event, copying),
        ("on_wait", computing, event),
        ("on_host_wait", event),
    ] == witness.told


def test_the_device_of_a_process_is_made_once_and_through_its_maker(monkeypatch):
    made = []

    def maker(name):
        made.append(LiveDevice(name))
        return made[-1]

    monkeypatch.setattr(module, "_devices", [])
    monkeypatch.setattr(module, "get_device", maker)

    assert module.live_device() is None
    assert module.live_device("cpu") is module.live_device("cpu") is module.live_device()
    assert ["cpu"] == [each.name for each in made]


def test_the_host_may_wait_for_a_stream_on_which_nothing_was_queued():
    device = LiveDevice("cpu")
    device.observers.append(OrderingRecorder(device.allocation_of))

    device.on_host_wait(device.current_stream())

    assert {} == device.observers[0].races
