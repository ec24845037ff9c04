import pytest
import torch

from harness.refengine.device import (
    SimulatedDevice,
    get_current_device,
    get_device,
    set_current_device,
)


class Log(list):
    """Work that says its name when it runs."""

    def launch(self, device, name, *args):
        return device.launch(lambda *_: self.append(name) or name, *args, site=name)


@pytest.fixture
def device():
    return SimulatedDevice(schedule="compute_late")


@pytest.fixture
def log():
    return Log()


class LastStreamFirst:
    """The most adverse order for waits: whatever stream was made last goes first."""

    def pick(self, heads):
        return len(heads) - 1


@pytest.fixture
def two():
    device = SimulatedDevice(schedule=LastStreamFirst())
    return device, device.new_stream("side")


def test_work_runs_only_when_something_waits_for_it(device, log):
    pending = log.launch(device, "a")
    log.launch(device, "b")

    assert log == []
    assert pending.result() == "a"
    assert log == ["a"]
    device.synchronize()
    assert log == ["a", "b"]
    assert pending.result() == "a"
    assert log == ["a", "b"]


def test_a_stream_runs_in_order(two, log):
    device, side = two
    with device.stream(side):
        for name in "abc":
            log.launch(device, name)
    device.synchronize()

    assert log == ["a", "b", "c"]


def test_the_stream_scope_ends_with_its_block(two):
    device, side = two
    default = device.current_stream()
    with device.stream(side) as inside:
        assert inside is side is device.current_stream()
    assert default is device.current_stream()
    with pytest.raises(KeyError), device.stream(side):
        raise KeyError
    assert default is device.current_stream()


def test_streams_without_events_are_unordered(two, log):
    device, side = two
    log.launch(device, "first")
    with device.stream(side):
        log.launch(device, "second")
    device.synchronize()

    assert log == ["second", "first"]


def test_a_wait_orders_work_after_the_recorded_point(two, log):
    device, side = two
    event = device.new_event("e")
    log.launch(device, "before")
    event.record()
    log.launch(device, "after")
    side.wait_event(event)
    with device.stream(side):
        log.launch(device, "waiter")
    device.synchronize()

    assert log == ["before", "waiter", "after"]


def test_waiting_for_an_event_never_recorded_is_no_wait(two, log):
    device, side = two
    event = device.new_event("e")
    log.launch(device, "work")
    event.wait(side)
    event.synchronize()
    with device.stream(side):
        log.launch(device, "waiter")
    assert event.query()
    event.record()
    device.synchronize()

    assert log == ["waiter", "work"]


def test_recording_again_moves_the_point_for_later_waits_only(two, log):
    device, side = two
    other = device.new_stream("other")
    event = device.new_event("e")
    log.launch(device, "one")
    event.record()
    side.wait_event(event)
    log.launch(device, "two")
    event.record()
    other.wait_event(event)
    for stream, name in ((side, "after one"), (other, "after two")):
        with device.stream(stream):
            log.launch(device, name)
    device.synchronize()

    assert log == ["one", "after one", "two", "after two"]


def test_wait_stream_takes_what_is_queued_now(two, log):
    device, side = two
    log.launch(device, "before")
    side.wait_stream(device.current_stream())
    log.launch(device, "after")
    with device.stream(side):
        log.launch(device, "waiter")
    device.synchronize()

    assert log == ["before", "waiter", "after"]


def test_event_synchronize_runs_to_the_point_and_no_further(device, log):
    event = device.new_event()
    log.launch(device, "a")
    device.current_stream().record_event(event)
    log.launch(device, "b")
    event.synchronize()

    assert log == ["a"]
    assert event.query()


def test_stream_synchronize_leaves_other_streams_alone(log):
    device = SimulatedDevice()
    side = device.new_stream("side")
    log.launch(device, "a")
    with device.stream(side):
        log.launch(device, "b")
    side.synchronize()

    assert log[:2] == ["a", "b"]  # in order, what was launched earlier may run first
    with device.stream(side):
        log.launch(device, "c")
    log.launch(device, "d")
    side.synchronize()
    assert log == ["a", "b", "c"]


def test_polling_an_event_makes_progress(device, log):
    event = device.new_event()
    log.launch(device, "a")
    log.launch(device, "b")
    event.record()

    assert not event.query()
    assert not event.query()
    assert event.query()
    assert log == ["a", "b"]


def test_a_pending_argument_is_seen_as_its_result_across_streams(two):
    device, side = two
    first = device.launch(lambda: 20)
    with device.stream(side):
        second = device.launch(lambda a, b: a + b, first, 1)

    assert second.result() == 21


def test_an_asynchronous_copy_reads_its_source_when_it_runs(device):
    source, target = torch.zeros(2), torch.zeros(2)
    device.copy_async(target, source)
    source.fill_(4)
    assert target.tolist() == [0.0, 0.0]
    device.synchronize()
    assert target.tolist() == [4.0, 4.0]
    device.copy_async(target, device.launch(torch.ones, 2))
    device.synchronize()
    assert target.tolist() == [1.0, 1.0]


def test_an_error_names_its_site_and_stays_with_its_result(device, log):
    bad = device.launch(lambda: 1 // 0, site="layer.3")
    log.launch(device, "later")
    with pytest.raises(ZeroDivisionError) as error:
        device.synchronize()
    assert "layer.3" in error.value.__notes__[0]
    with pytest.raises(ZeroDivisionError):
        bad.result()
    user = device.launch(lambda x: x, bad)
    with pytest.raises(ZeroDivisionError):
        user.result()
    assert log == ["later"]


def test_work_that_waits_for_its_own_device_is_refused(device):
    def wait():
        device.new_event().synchronize()  # nothing recorded: fine
        return device.launch(lambda: 1).result()

    with pytest.raises(RuntimeError, match="'inner' waits for its own device"):
        device.launch(wait, site="inner").result()


def test_work_runs_without_gradients(device):
    weight = torch.ones(2, requires_grad=True)

    assert not device.launch(lambda w: w * 2, weight).result().requires_grad


def test_finished_work_holds_no_memory():
    device = SimulatedDevice()
    tensor = device.empty((4,), torch.float32)
    pending = device.launch(lambda t: 1, tensor, reads=(tensor,), writes=(tensor,))
    del tensor
    assert device.memory_stats()["device"]["current"] == 16
    pending.result()
    assert device.memory_stats()["device"]["current"] == 0


def test_streams_of_another_device_are_refused(device):
    with pytest.raises(ValueError, match="another device"):
        device.new_event().record(SimulatedDevice().current_stream())


class Recorder:
    def __init__(self):
        self.seen = []

    def on_launch(self, work):
        self.seen.append(("launch", work.site, work.stream.name, len(work.reads)))

    def on_copy(self, work):
        self.seen.append(("copy", work.site, work.stream.name, len(work.writes)))

    def on_record(self, event, stream):
        self.seen.append(("record", event.name, stream.name))

    def on_wait(self, stream, event):
        self.seen.append(("wait", event.name, stream.name))


def test_observers_see_what_the_host_queues_in_host_order(device):
    recorder = Recorder()
    device.observers.append(recorder)
    side = device.new_stream("side")
    event = device.new_event("e")
    x = torch.ones(1)
    device.launch(torch.sum, x, reads=(x,), site="sum")
    event.record()
    side.wait_event(event)
    with device.stream(side):
        device.copy_async(x, x, site="copy")

    assert recorder.seen == [
        ("launch", "sum", "default", 1),
        ("record", "e", "default"),
        ("wait", "e", "side"),
        ("copy", "copy", "side", 1),
    ]


def test_devices_come_by_name_and_one_is_current():
    assert get_device().name == "simulated"
    assert get_device("simulated", capacity_bytes=7).capacity_bytes == 7
    with pytest.raises(ValueError, match=r"device='tpu' must be one of simulated, cuda"):
        get_device("tpu")
    with pytest.raises(RuntimeError, match="no current device"):
        get_current_device()
    device = get_device()
    set_current_device(device)
    try:
        assert device is get_current_device()
    finally:
        set_current_device(None)
