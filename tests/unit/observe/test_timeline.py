"""The slots' timeline: the last whole pass, one event for a module's copy and for its read."""

import pytest

from harness.core import SlotEvent
from harness.engines import view_of
from harness.observe.causes import read_ordering
from harness.observe.ordering import OrderingRecorder
from harness.observe.ranges import Access
from harness.observe.timeline import PoolTimeline, read_timeline
from tests.live import PREFETCH, worker_of

SLOTS = {100: 0, 200: 0, 300: 1}


class Bench:
    """A pool of two slots, slot 0 of two buffers; a layer is its source address or its site."""

    def __init__(self):
        self.seq, self.seen = 0, PoolTimeline()

    def copy(self, layer, *addresses, is_race=False):
        for address in addresses:
            self._add(f"copy {layer}", address, copy_idx=1, source=layer, is_race=is_race)

    def read(self, layer, *addresses, part="mlp", is_race=False):
        self._add(f"{layer}.{part}", *addresses, is_race=is_race)

    def _add(self, site, *addresses, copy_idx=None, source=None, is_race=False):
        self.seq += 1
        access = Access(
            site=site,
            stream=0,
            stream_name="default" if copy_idx is None else "copy",
            tick=self.seq,
            copy_idx=copy_idx,
            source=source,
            is_write=copy_idx is not None,
        )
        for address in addresses:
            self.seen.add(access, address, seq=self.seq, is_race=is_race)

    def step(self):
        self.read(1, 100, 200)
        self.copy(5, 100, 200)
        self.read(3, 300)
        self.read(5, 100, 200)
        self.copy(1, 100, 200)

    @property
    def events(self):
        return read_timeline(self.seen.last_complete(), SLOTS, layer_of)

    @property
    def told(self):
        return [(e.kind, e.layer_idx, e.slot_idx) for e in self.events]


def layer_of(access):
    return access.source if access.source is not None else int(access.site.split(".")[0])


STEP = [("read", 1, 0), ("copy", 5, 0), ("read", 3, 1), ("read", 5, 0), ("copy", 1, 0)]
FILLED = [("copy", 3, 1), ("copy", 1, 0)]


@pytest.fixture
def bench():
    bench = Bench()
    bench.copy(1, 100, 200)
    bench.copy(3, 300)
    return bench


def test_the_last_pass_comes_after_the_copies_that_filled_its_slots(bench):
    for _ in range(3):
        bench.step()

    assert bench.told == [*FILLED, *STEP]
    assert [e.seq for e in bench.events] == sorted(e.seq for e in bench.events)


def test_a_pass_that_is_not_over_gives_way_to_the_one_before(bench):
    bench.step()
    bench.step()
    whole = bench.told
    bench.read(1, 100, 200)
    bench.copy(5, 100, 200)

    assert bench.told == whole == [*FILLED, *STEP]


def test_nothing_is_shown_where_nothing_read_the_pool(bench):
    assert bench.events == ()


def test_copies_and_launches_of_one_module_are_one_event_that_keeps_their_races(bench):
    bench.read(1, 100, part="attn")
    bench.read(1, 200, part="mlp", is_race=True)

    assert bench.told == [("copy", 1, 0), ("copy", 3, 1), ("read", 1, 0)]
    assert bench.events[-1] == SlotEvent(
        kind="read", seq=4, slot_idx=0, layer_idx=1, stream="default", is_race=True
    )


def test_a_module_copied_twice_is_two_events(bench):
    bench.read(1, 100)
    bench.copy(5, 100, 200)
    bench.copy(5, 100, 200)

    assert bench.told[-2:] == [("copy", 5, 0), ("copy", 5, 0)]


def test_a_copy_between_a_modules_launches_parts_its_reads(bench):
    bench.read(1, 100, part="attn")
    bench.copy(5, 100)
    bench.read(1, 200, part="mlp")

    assert bench.told[-3:] == [("read", 1, 0), ("copy", 5, 0), ("read", 1, 0)]


def test_what_is_kept_does_not_grow_with_time(bench):
    sizes = set()
    for _ in range(50):
        bench.step()
        sizes.add(len(bench.seen.last_complete()))

    assert max(sizes) == 12
    assert len(bench.seen._now.accesses) + len(bench.seen._last.accesses) == 18


def test_a_live_engine_reads_its_own_layer_from_each_slot(live_engine):
    engine = live_engine(offload=PREFETCH, instruments=frozenset({"ordering"}))
    device = worker_of(engine).device
    recorder = next((o for o in device.observers if isinstance(o, OrderingRecorder)), None)
    if recorder is None:
        recorder = OrderingRecorder(device.allocation_of)
        device.observers.append(recorder)
    engine.generate(0)

    events = read_ordering(view_of(worker_of(engine)), recorder).timeline
    reads = [e for e in events if e.kind == "read"]
    held, holds = {}, []
    for event in events:
        if event.kind == "copy":
            held[event.slot_idx] = event.layer_idx
        else:
            holds.append(held[event.slot_idx])
    assert holds == [e.layer_idx for e in reads] == [2, 3, 6, 7]
    assert not any(e.is_race for e in events)
