"""What the recorder says of a replay: the captured order, after what came before it."""

import pytest
import torch

from harness.observe.ordering import OrderingRecorder
from harness.refengine.device import SimulatedDevice


class Bench:
    """A device with a recorder; a graph copies into a buffer on a forked stream and reads it."""

    def __init__(self):
        self.device = SimulatedDevice()
        self.recorder = OrderingRecorder(self.device.allocation_of)
        self.device.observers.append(self.recorder)
        self.main, self.side = self.device.current_stream(), self.device.new_stream("copy")
        self.buffer = self.device.empty((8,), torch.float32, kind="buffer_pool")
        self.source = self.device.empty((8,), torch.float32, space="pinned")

    def read(self, site, stream=None):
        with self.device.stream(stream or self.main):
            self.device.launch(lambda: None, reads=(self.buffer,), site=site)

    def capture(self, *, waits):
        with self.device.capture("step") as graph:
            self.side.wait_stream(self.main)
            with self.device.stream(self.side):
                self.device.copy_async(self.buffer, self.source, site="copy")
            if waits:
                self.main.wait_stream(self.side)
            self.read("read")
            self.main.wait_stream(self.side)
        return graph

    @property
    def races(self):
        self.device.synchronize()
        return [(r.conflict.kind, *key[1:4]) for key, r in self.recorder.races.items()]


@pytest.fixture
def bench():
    return Bench()


def test_a_replay_is_seen_with_its_captured_order(bench):
    ordered = bench.capture(waits=True)
    assert bench.recorder.num_work == 0
    for _ in range(2):
        ordered.replay()
    assert bench.races == []
    assert (bench.recorder.num_work, bench.recorder.num_copies) == (4, 2)
    assert bench.recorder.num_pool_checked >= 3

    bench.capture(waits=False).replay()
    assert bench.races == [("write-read", "copy", "read", "copy")]


def test_a_replay_comes_after_its_own_streams_earlier_work_and_no_others(bench):
    graph = bench.capture(waits=True)
    bench.read("earlier")
    graph.replay()
    bench.read("later")
    assert bench.races == []

    bench.device.synchronize()
    bench.read("elsewhere", bench.side)
    graph.replay()
    assert bench.races == [("read-write", "elsewhere", "copy", "copy")]
