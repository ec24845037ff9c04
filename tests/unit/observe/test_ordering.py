"""Each rule of CUDA's order, then what the recorder says of a live engine."""

import pytest
import torch

from harness.engines import view_of
from harness.observe.ordering import OrderingRecorder
from harness.refengine.device import Exhaustive, SimulatedDevice
from tests.live import worker_of


class Bench:
    """A device with a recorder on it, a second stream, and one buffer both can touch."""

    def __init__(self, schedule="in_order", seed=0):
        self.device = SimulatedDevice(schedule=schedule, seed=seed)
        self.recorder = OrderingRecorder(self.device.allocation_of)
        self.device.observers.append(self.recorder)
        self.main, self.side = self.device.current_stream(), self.device.new_stream("copy")
        self.event = self.device.new_event("done")
        self.buffer = self.device.empty((8,), torch.float32, kind="buffer_pool")
        self.source = self.device.empty((8,), torch.float32, space="pinned")

    def write(self, stream=None, into=None, site="write"):
        into = self.buffer if into is None else into
        with self.device.stream(stream or self.side):
            self.device.copy_async(into, self.source[: len(into)], site=site)

    def read(self, stream=None, of=None, site="read"):
        of = self.buffer if of is None else of
        with self.device.stream(stream or self.main):
            return self.device.launch(lambda: None, reads=(of,), site=site)

    @property
    def races(self):
        self.device.synchronize()
        return [(r.conflict.kind, *key[1:3], r.count) for key, r in self.recorder.races.items()]


@pytest.fixture
def bench():
    return Bench()


def test_a_wait_for_the_recorded_copy_orders_its_reader(bench):
    bench.write()
    bench.side.record_event(bench.event)
    bench.main.wait_event(bench.event)
    bench.read()

    assert bench.races == []
    assert bench.recorder.num_checked == bench.recorder.num_pool_checked == 1
    assert (bench.recorder.num_work, bench.recorder.num_copies) == (2, 1)


def test_without_the_wait_the_pair_is_a_race_though_it_ran_in_order(bench):
    bench.write()
    bench.side.record_event(bench.event)
    bench.read()

    assert bench.races == [("write-read", "write", "read", 1)]


def test_a_reader_that_a_refill_does_not_wait_for_is_a_race(bench):
    bench.read()
    bench.write()

    assert bench.races == [("read-write", "read", "write", 1)]


def test_two_writers_are_a_race_and_two_readers_are_none(bench):
    bench.read()
    bench.read(bench.side)
    assert bench.races == []

    other = bench.device.empty((8,), torch.float32)
    bench.write(bench.main, other, "first")
    bench.write(bench.side, other, "second")
    bench.device.synchronize()

    assert ("write-write", "first", "second", 1) in bench.races


def test_a_wait_for_an_event_never_recorded_is_no_wait(bench):
    bench.write()
    bench.main.wait_event(bench.event)
    bench.side.record_event(bench.event)
    bench.read()

    assert bench.races == [("write-read", "write", "read", 1)]


def test_a_wait_sees_the_record_before_it_in_host_order_only(bench):
    bench.side.record_event(bench.event)
    bench.write()
    bench.main.wait_event(bench.event)
    bench.side.record_event(bench.event)
    bench.read()

    assert bench.races == [("write-read", "write", "read", 1)]


def test_recording_again_moves_the_point_for_later_waits(bench):
    bench.side.record_event(bench.event)
    bench.write()
    bench.side.record_event(bench.event)
    bench.main.wait_event(bench.event)
    bench.read()

    assert bench.races == []


def test_recording_again_on_another_stream_forgets_the_first_point(bench):
    bench.write()
    bench.side.record_event(bench.event)
    bench.main.record_event(bench.event)
    bench.device.new_stream("third").wait_event(bench.event)
    bench.main.wait_event(bench.event)
    bench.read()

    assert len(bench.races) == 1


def test_wait_stream_waits_for_all_queued_so_far_and_nothing_later(bench):
    bench.write()
    bench.main.wait_stream(bench.side)
    bench.read()
    assert bench.races == []

    bench.side.wait_stream(bench.main)
    bench.write(site="later")
    bench.read(site="too early")

    assert bench.races == [("write-read", "later", "too early", 1)]


def test_order_passes_through_a_third_stream(bench):
    third = bench.device.new_stream("third")
    bench.write()
    third.wait_stream(bench.side)
    bench.main.wait_stream(third)
    bench.read()

    assert bench.races == []


@pytest.mark.parametrize(
    "wait",
    [
        lambda b, _work: b.device.synchronize(),
        lambda b, _work: b.side.synchronize(),
        lambda b, _work: b.event.synchronize(),
        lambda _b, work: work.result(),
        lambda b, _work: [b.event.query() for _ in range(3)],
    ],
    ids=["device", "stream", "event", "result", "query"],
)
def test_what_the_host_waited_for_comes_before_what_it_launches_next(bench, wait):
    with bench.device.stream(bench.side):
        work = bench.device.launch(lambda: None, writes=(bench.buffer,), site="write")
    bench.side.record_event(bench.event)
    wait(bench, work)
    bench.read()

    assert bench.races == []


def test_a_blocking_copy_waits_for_the_current_stream_alone(bench):
    bench.write()
    bench.device.to(torch.zeros(1), "device")
    bench.read()
    assert len(bench.races) == 1

    later = Bench()
    later.write()
    with later.device.stream(later.side):
        later.device.to(torch.zeros(1), "device")
    later.read()

    assert later.races == []


def test_the_host_waits_for_no_more_than_it_asked_for(bench):
    bench.side.record_event(bench.event)
    bench.write()
    bench.event.synchronize()
    bench.read()

    assert len(bench.races) == 1


def test_running_out_of_room_is_no_order(bench):
    full = Bench()
    full.device.ledger.capacity_bytes = full.device.memory_stats()["device"]["current"]
    full.write()
    with pytest.raises(RuntimeError, match="out of device memory"):
        full.device.empty((1,), torch.float32)
    full.read()

    assert len(full.races) == 1


def test_work_comes_after_the_work_whose_result_it_takes(bench):
    with bench.device.stream(bench.side):
        made = bench.device.launch(lambda: 1, writes=(bench.buffer,), site="write")
    bench.device.launch(lambda _: None, made, reads=(bench.buffer,), site="read")

    assert bench.races == []


def test_views_of_other_bytes_do_not_conflict_and_overlapping_ones_do(bench):
    bench.write(into=bench.buffer[:4])
    bench.read(of=bench.buffer[4:], site="apart")
    bench.read(of=bench.buffer.view(2, 4)[:, 1], site="across")

    assert bench.races == [("write-read", "write", "across", 1)]


def test_memory_handed_out_again_is_other_memory(bench):
    for _ in range(4):
        fresh = bench.device.empty((1024,), torch.float32)
        with bench.device.stream(bench.side):
            bench.device.launch(lambda: None, writes=(fresh,)).result()
        del fresh
        other = bench.device.empty((1024,), torch.float32)
        bench.device.launch(lambda: None, reads=(other,))

    assert bench.races == []


def test_the_same_cause_is_one_race_with_a_count(bench):
    for _ in range(5):
        bench.side.wait_stream(bench.main)
        bench.write()
        bench.read()

    assert bench.races == [("write-read", "write", "read", 5)]


def test_what_is_remembered_does_not_grow_with_time(bench):
    for _ in range(200):
        bench.side.wait_stream(bench.main)
        bench.write()
        bench.main.wait_stream(bench.side)
        bench.read()
        bench.device.synchronize()

    (history,) = [
        m.history for a, m in bench.recorder._memory.items() if a == bench.buffer.data_ptr()
    ]
    (span,) = history._spans.values()
    assert len(span.readers) == 1
    assert len(bench.recorder._works) <= 2
    assert bench.races == []


def test_every_interleaving_gives_one_report_and_some_give_wrong_values():
    reports, seen = set(), set()
    schedules = Exhaustive(limit=1000)
    for schedule in schedules:
        bench = Bench(schedule)
        bench.source.fill_(1.0)
        bench.buffer.fill_(0.0)
        for _ in range(2):
            bench.side.wait_stream(bench.main)
            bench.write()
            values = bench.device.launch(
                lambda b=bench: b.buffer.sum().item(), reads=(bench.buffer,), site="read"
            )
        reports.add(tuple(bench.races))
        seen.add(values.result())

    assert schedules.is_complete
    assert reports == {(("write-read", "write", "read", 2),)}
    assert seen == {0.0, 8.0}


def test_an_exhaustive_search_that_hits_its_limit_says_so():
    schedules = Exhaustive(limit=3)
    for schedule in schedules:
        bench = Bench(schedule)
        for _ in range(4):
            bench.write()
            bench.read()
        bench.device.synchronize()

    assert not schedules.is_complete


def test_each_interleaving_comes_once():
    orders = []
    schedules = Exhaustive()
    for schedule in schedules:
        device = SimulatedDevice(schedule=schedule)
        order, side = [], device.new_stream("side")
        for i in range(3):
            device.launch(order.append, f"a{i}")
            with device.stream(side):
                device.launch(order.append, f"b{i}")
        device.synchronize()
        orders.append(tuple(order))

    assert len(orders) == len(set(orders)) == 20


def test_observers_see_a_run_just_before_it_happens():
    class Watch(OrderingRecorder):
        def on_run(self, work):
            seen.append((work.site, buffer[0].item()))

    device, seen = SimulatedDevice(), []
    buffer = device.empty((1,), torch.float32)
    buffer.zero_()
    device.observers.append(Watch(device.allocation_of))
    device.launch(lambda: buffer.fill_(1.0), reads=(buffer,), site="first")
    device.launch(lambda: None, reads=(buffer,), site="second")
    assert seen == []
    device.synchronize()

    assert seen == [("first", 0.0), ("second", 1.0)]


def test_an_engine_without_recorders_has_none_to_read(live_engine):
    view = view_of(worker_of(live_engine(runner="v2")))

    assert list(view.observers) == []


def test_a_write_is_not_held_against_readers_before_an_earlier_write(bench):
    for action in (bench.write, bench.read, bench.write, bench.write):
        action(bench.main)

    assert bench.races == []
    assert bench.recorder.num_checked == 1 + 2 + 1
