"""Views and refills are told from what compute and copies were seen to do, not from notes."""

import pytest

from harness.engines import view_of
from harness.engines.reference import ReferenceModules
from harness.faults import FAULTS
from harness.observe import install, read_probe
from harness.observe.buffers import told_of
from harness.observe.placement import has_wrapped_forward
from harness.refengine.offloader import PrefetchOffloader, UVAOffloader
from tests.live import COPYING, PREFETCH, UVA, worker_of


@pytest.fixture(params=[(), ("integrity",)], ids=["bare", "recorded"])
def look(request, live_engine):
    """`look(**fields)` -> view of a live engine after one generate step."""
    undo = install(request.param, ReferenceModules())

    def start(**fields):
        engine = live_engine(**fields)
        engine.generate(0)
        return view_of(worker_of(engine))

    yield start
    undo()


def uva_of(view):
    return {p.is_uva for p in read_probe(view).params if p.is_offloaded}


@pytest.mark.parametrize(("offload", "is_uva"), [(UVA, True), (COPYING, False)])
def test_a_view_is_one_and_a_copy_is_none(look, offload, is_uva):
    assert uva_of(look(runner="v2", offload=offload)) == {is_uva}


@pytest.mark.parametrize(
    ("fault", "offload", "is_uva"),
    [("uva-is-copied", UVA, False), ("uva-flag-ignored", COPYING, True)],
)
def test_flags_that_lie_about_views_are_not_believed(look, fault, offload, is_uva, monkeypatch):
    monkeypatch.setattr(UVAOffloader, "_offload_module", UVAOffloader._offload_module)
    FAULTS.get(fault).before_start(ReferenceModules())

    view = look(runner="v2", offload=offload)

    assert view.offloader.uva_offloading is not is_uva
    flags = {getattr(p, "_vllm_is_uva_offloaded", False) for p in view.model.parameters()}
    assert is_uva not in flags or not is_uva
    assert uva_of(view) == {is_uva}


def test_copies_made_inside_a_layer_are_seen_without_a_wrapped_forward(live_engine, monkeypatch):
    from harness.refengine.models.llama import DecoderLayer

    plain = DecoderLayer.forward

    def forward(self, *args):
        for param in self.parameters():
            fresh = self.device.empty(param.shape, param.dtype, kind="state")
            self.device.copy_async(fresh, param.data, site="hidden_copy")
        return plain(self, *args)

    monkeypatch.setattr(DecoderLayer, "forward", forward)
    undo = install(("integrity",), ReferenceModules())
    engine = live_engine(runner="v2", offload=UVA)
    undo()
    engine.generate(0)

    assert uva_of(view_of(worker_of(engine))) == {False}


def test_a_hook_before_forward_counts_as_wrapped(live_engine):
    view = view_of(worker_of(live_engine(runner="v1", offload=UVA)))
    name = next(p.name for p in read_probe(view).params if p.is_offloaded)
    assert not has_wrapped_forward(view.model, name)

    layer = view.model.get_submodule(f"model.layers.{view.layer_of(name)}")
    handle = layer.register_forward_pre_hook(lambda module, args: None)

    assert has_wrapped_forward(view.model, name)
    handle.remove()


def test_refills_are_read_from_copies_when_the_offloader_notes_nothing(live_engine, monkeypatch):
    monkeypatch.setattr(PrefetchOffloader, "_note_refill", lambda self, *indices: None)
    undo = install(("ordering",), ReferenceModules())
    engine = live_engine(runner="v2", offload=PREFETCH)
    undo()
    engine.generate(0)

    assert read_probe(view_of(worker_of(engine))).buffer_pool.refill_after == {
        2: 7, 3: 3, 6: 6, 7: 2,
    }  # fmt: skip


def test_a_wrong_refill_that_is_made_good_later_is_told_of(look, monkeypatch):
    right = PrefetchOffloader._get_next_prefetch_index
    calls = []

    def sometimes_wrong(index, step, num):
        calls.append(index)
        return 1 if len(calls) == 5 and index == 0 else right(index, step, num)

    monkeypatch.setattr(
        PrefetchOffloader, "_get_next_prefetch_index", staticmethod(sometimes_wrong)
    )

    view = look(runner="v2", offload=PREFETCH)

    probe = read_probe(view)
    assert probe.buffer_pool.refill_after == {2: 3, 3: 3, 6: 6, 7: 2}
    assert probe.drift == ()


@pytest.mark.parametrize(
    ("seen", "told"), [((7,), 7), ((7, 3), 3), ((3, 7), 3), ((3,), 3), ((6, 3, 7), 6)]
)
def test_the_refill_told_of_is_a_wrong_one_if_there_was_any(seen, told):
    assert told_of(2, seen, {2: 0, 3: 1, 6: 2, 7: 0}) == told
    assert told_of(9, (4, 5), {}) == 4
