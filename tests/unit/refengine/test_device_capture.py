"""Each rule of isolation of a capture, as CUDA has it, on the simulated device."""

import pytest
import torch

from harness.refengine.device import SimulatedDevice
from harness.refengine.device.cuda import CudaDevice
from harness.refengine.device.isolation import CaptureError, CaptureIsolationError


class Bench:
    """A device with a side stream, an event, and a log of the work that ran."""

    def __init__(self, schedule="in_order"):
        self.device = SimulatedDevice(schedule=schedule)
        self.main, self.side = self.device.current_stream(), self.device.new_stream("side")
        self.event = self.device.new_event("done")
        self.log = []

    def launch(self, name, *args, stream=None):
        def work(*values):
            self.log.append(name)
            return (name, *values)

        with self.device.stream(stream or self.main):
            return self.device.launch(work, *args, site=name)

    def forked(self):
        with self.device.capture("step") as graph:
            self.launch("a")
            self.side.wait_stream(self.main)
            self.launch("s", stream=self.side)
            self.main.wait_stream(self.side)
            self.launch("b")
        return graph


@pytest.fixture
def bench():
    return Bench()


def test_captured_work_runs_at_each_replay_and_not_before(bench):
    with bench.device.capture("step") as graph:
        bench.launch("a")
    bench.device.synchronize()
    assert bench.log == []

    graph.replay()
    graph.replay()
    assert bench.log == []
    bench.device.synchronize()
    assert bench.log == ["a", "a"]


def test_a_replay_works_on_the_same_tensors(bench):
    device = bench.device
    source, buffer = device.empty((2,), torch.float32), device.empty((2,), torch.float32)
    with device.capture("step") as graph:
        device.copy_async(buffer, source)
        doubled = device.launch(lambda t: t * 2, buffer, reads=(buffer,))
        device.copy_async(buffer, doubled)
    for value in (1.0, 3.0):
        source.fill_(value)
        graph.replay()
        device.synchronize()
        assert buffer.tolist() == [2 * value] * 2


def test_a_captured_result_is_the_latest_replays_and_feeds_later_work(bench):
    with bench.device.capture("step") as graph:
        first = bench.launch("a")
        second = bench.launch("b", first)
    with pytest.raises(CaptureError, match=r"site='b' of capture 'step' has no result yet"):
        second.result()

    graph.replay()
    assert second.result() == ("b", ("a",))
    assert bench.launch("c", second).result() == ("c", ("b", ("a",)))


@pytest.mark.parametrize("schedule", ["in_order", "copy_late", "compute_late"])
def test_forked_work_keeps_its_order(schedule):
    bench = Bench(schedule)
    graph = bench.forked()
    bench.launch("before")
    graph.replay()
    bench.launch("after")
    bench.device.synchronize()

    assert bench.log == ["before", "a", "s", "b", "after"]


def test_a_graph_is_replayed_on_the_stream_that_is_current_then(bench):
    graph = bench.forked()
    with bench.device.stream(bench.side):
        graph.replay()
    bench.main.synchronize()
    assert bench.log == []
    bench.side.synchronize()
    assert bench.log == ["a", "s", "b"]


def test_a_stream_that_was_not_forked_works_on_as_usual(bench):
    with bench.device.capture("step"):
        bench.launch("outside", stream=bench.side)
        bench.launch("inside")
    bench.device.synchronize()
    assert bench.log == ["outside"]


def test_inside_waiting_for_an_event_recorded_before_is_an_isolation_error(bench):
    bench.side.record_event(bench.event)
    message = r"stream 'default' in capture 'step' cannot wait for event 'done': recorded outside"
    with pytest.raises(CaptureIsolationError, match=message), bench.device.capture("step"):
        bench.main.wait_event(bench.event)


def test_inside_waiting_for_a_stream_that_was_not_forked_is_an_isolation_error(bench):
    with (
        pytest.raises(CaptureIsolationError, match="event 'side_tail': recorded outside"),
        bench.device.capture("step"),
    ):
        bench.main.wait_stream(bench.side)


def test_inside_waiting_for_an_event_never_recorded_is_no_wait(bench):
    with bench.device.capture("step") as graph:
        bench.main.wait_event(bench.event)
        bench.launch("a")
    graph.replay()
    bench.device.synchronize()
    assert bench.log == ["a"]


def test_an_event_recorded_inside_is_not_valid_for_waits_outside(bench):
    with bench.device.capture("step"):
        bench.main.record_event(bench.event)
    message = r"stream 'side' cannot wait for event 'done': last recorded inside capture 'step'"
    with pytest.raises(CaptureIsolationError, match=message):
        bench.side.wait_event(bench.event)
    for host_wait in (bench.event.synchronize, bench.event.query):
        with pytest.raises(CaptureError, match="event 'done': last recorded inside capture 'step'"):
            host_wait()

    bench.main.record_event(bench.event)
    bench.side.wait_event(bench.event)
    assert bench.event.query()


def test_an_event_of_one_capture_is_not_valid_in_the_next(bench):
    with bench.device.capture("first"):
        bench.main.record_event(bench.event)
    with (
        pytest.raises(CaptureIsolationError, match="last recorded inside capture 'first'"),
        bench.device.capture("second"),
    ):
        bench.main.wait_event(bench.event)


@pytest.mark.parametrize(
    "host_wait",
    [
        lambda b, _: b.device.synchronize(),
        lambda b, _: b.main.synchronize(),
        lambda b, _: b.event.synchronize(),
        lambda b, _: b.event.query(),
        lambda _, work: work.result(),
        lambda b, _: b.launch("a").result(),
        lambda b, _: b.device.to(torch.zeros(1), "device"),
    ],
    ids=["device", "stream", "event", "query", "earlier", "captured", "blocking copy"],
)
def test_inside_the_host_cannot_wait(bench, host_wait):
    earlier = bench.launch("earlier")
    with (
        pytest.raises(CaptureError, match=r"the host cannot wait for .* inside capture 'step'"),
        bench.device.capture("step"),
    ):
        host_wait(bench, earlier)
    bench.device.synchronize()
    assert bench.log == ["earlier"]


def test_a_broken_rule_spoils_the_capture_even_if_the_error_is_swallowed(bench):
    with (
        pytest.raises(CaptureError, match=r"capture 'step' is invalid: the host cannot wait"),
        bench.device.capture("step") as graph,
        pytest.raises(CaptureError),
    ):
        bench.device.synchronize()
    with pytest.raises(CaptureError, match="graph name='step' is not complete"):
        graph.replay()


def test_unjoined_work_of_a_forked_stream_is_an_error(bench):
    message = r"capture 'step' ended with unjoined work on stream 'side'"

    def leave_work_behind():
        with bench.device.capture("step"):
            bench.side.wait_stream(bench.main)
            bench.launch("s", stream=bench.side)
            bench.main.wait_stream(bench.side)
            bench.launch("after the join", stream=bench.side)

    with pytest.raises(CaptureError, match=message):
        leave_work_behind()


def test_a_forked_stream_without_work_need_not_be_joined(bench):
    with bench.device.capture("step") as graph:
        bench.launch("a")
        bench.side.wait_stream(bench.main)
    graph.replay()
    bench.device.synchronize()
    assert bench.log == ["a"]


def test_a_join_through_another_forked_stream_counts(bench):
    third = bench.device.new_stream("third")
    with bench.device.capture("step") as graph:
        bench.side.wait_stream(bench.main)
        bench.launch("s", stream=bench.side)
        third.wait_stream(bench.side)
        bench.main.wait_stream(third)
    graph.replay()
    bench.main.synchronize()
    assert bench.log == ["s"]


def test_a_capture_inside_a_capture_is_refused(bench):
    with (
        pytest.raises(CaptureError, match="capture 'inner' inside capture 'outer'"),
        bench.device.capture("outer"),
        bench.device.capture("inner"),
    ):
        pass
    assert bench.device.capturing is None


def test_hardware_refuses_a_capture_in_one_line():
    with pytest.raises(CaptureError, match=r"^capture\(name='step'\) needs device='simulated'.*$"):
        CudaDevice.capture(object(), "step")


def test_an_error_inside_ends_the_capture(bench):
    with pytest.raises(KeyError), bench.device.capture("step"):
        raise KeyError
    bench.launch("a")
    bench.device.synchronize()
    assert bench.log == ["a"]
