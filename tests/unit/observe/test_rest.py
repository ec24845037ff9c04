"""Weights at rest, on a hand-made view: host copies, resident parameters, and slots."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harness.engines.base import OffloadedModule
from harness.observe.instruments import collect
from harness.observe.rest import UNSEEN, read_at_rest, records
from harness.observe.weights import WeightRecorder, digest_of

NUM_LAYERS = 3


class RestView:
    """Layers 0 and 2 take turns in slot 0, layer 1 has slot 1; `head` is resident.

    Slot 0 holds layer 2's bytes now.
    """

    sees_compute = False
    is_asleep = False

    def __init__(self):
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(NUM_LAYERS)])
        self.model.head = nn.Linear(2, 1, bias=False)
        self.copies = [torch.full((2, 2), float(i + 1)) for i in range(NUM_LAYERS)]
        self.buffers = [self.copies[2].clone(), self.copies[1].clone()]
        for index, layer in enumerate(self.model.layers):
            layer.weight.data = self.buffers[index % 2]
        self.observers = [WeightRecorder()]

    def offloaded_modules(self):
        return [
            OffloadedModule(module=layer, slot_idx=index % 2, host_copies={"weight": copy})
            for index, (layer, copy) in enumerate(zip(self.model.layers, self.copies, strict=True))
        ]

    def pool_slots(self):
        return [[buffer] for buffer in self.buffers]

    def layer_of(self, name):
        return int(name.split(".")[1]) if name.startswith("layers.") else None

    @property
    def expected(self):
        found = {
            f"layers.{i}.weight": digest_of(copy.clone()) for i, copy in enumerate(self.copies)
        }
        return {**found, "head.weight": digest_of(self.model.head.weight)}


@pytest.fixture
def view():
    return RestView()


def wrong(trace):
    """(parameter, slot) of every read that holds other bytes than it must."""
    return [
        (reads.name, reads.slots.get(digest))
        for reads in trace.reads
        for digest in reads.digests
        if digest != reads.expected
    ]


def test_each_parameter_and_each_slot_is_hashed(view):
    trace = read_at_rest(view, view.expected)

    assert ("rest", 6, 6) == (trace.mode, trace.num_reads, trace.num_hashed)
    assert (UNSEEN,) == trace.not_observed
    names = [reads.name for reads in trace.reads]
    assert [f"layers.{i}.weight" for i in range(3)] == names[:3]
    assert ["head.weight", "layers.2.weight", "layers.1.weight"] == names[3:]


def test_bytes_of_record_are_the_host_copies_where_there_are_any(view):
    found = dict(records(view))

    assert all(found[f"layers.{i}.weight"] is copy for i, copy in enumerate(view.copies))
    assert found["head.weight"].data_ptr() == view.model.head.weight.data_ptr()


def test_a_slot_that_holds_another_owners_bytes_is_right(view):
    assert [] == wrong(read_at_rest(view, view.expected))


def test_a_slot_that_holds_nobodys_bytes_is_wrong(view):
    expected = view.expected
    view.buffers[0].fill_(99.0)

    assert [("layers.0.weight", 0)] == wrong(read_at_rest(view, expected))


def test_a_slot_that_holds_the_bytes_of_a_layer_that_is_no_owner_is_wrong(view):
    expected = view.expected
    view.buffers[1].copy_(view.copies[0])

    assert [("layers.1.weight", 1)] == wrong(read_at_rest(view, expected))


def test_a_host_copy_that_was_damaged_is_wrong_though_its_slot_is_not(view):
    expected = view.expected
    view.copies[1].add_(1)

    assert [("layers.1.weight", None)] == wrong(read_at_rest(view, expected))


def test_a_resident_parameter_that_was_damaged_is_wrong(view):
    expected = view.expected
    view.model.head.weight.data.add_(1)

    assert [("head.weight", None)] == wrong(read_at_rest(view, expected))


def test_what_no_checkpoint_has_is_held_against_itself_and_called_so(view):
    expected = {name: digest for name, digest in view.expected.items() if name != "head.weight"}

    trace = read_at_rest(view, expected)

    assert ["head.weight"] == [reads.name for reads in trace.reads if reads.is_first_read]
    assert [] == wrong(trace)


def test_a_slot_is_not_judged_where_no_checkpoint_knows_its_users(view):
    trace = read_at_rest(view, {})

    assert 4 == len(trace.reads)
    assert all(reads.is_first_read for reads in trace.reads)


def test_graphs_make_the_recorder_look_at_rest(view, monkeypatch):
    monkeypatch.setattr("harness.observe.instruments.expected_for", lambda _: view.expected)

    ordering, integrity = collect(view)

    assert ordering is None
    assert "rest" == integrity.mode


def test_without_a_recorder_of_weights_nothing_is_hashed(view):
    view.observers = [SimpleNamespace()]

    assert (None, None) == collect(view)


def test_a_buffer_that_a_slots_first_module_has_no_use_for_is_not_looked_at(view):
    idle, layer = torch.full((3, 2), 7.0), view.model.layers[2]
    layer.weight.data = idle  # layer 2 is of another shape than layer 0, whose slot it shares
    view.copies[2] = torch.full((3, 2), 8.0)
    expected = view.expected
    view.buffers[0].copy_(view.copies[0])
    view.pool_slots = lambda: [[view.buffers[0], idle], [view.buffers[1]]]

    assert [] == wrong(read_at_rest(view, expected))
    view.buffers[0].fill_(99.0)
    assert [("layers.0.weight", 0)] == wrong(read_at_rest(view, expected))
