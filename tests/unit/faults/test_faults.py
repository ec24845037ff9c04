import re
from types import ModuleType, SimpleNamespace

import pytest

from harness.core import HarnessError, OffloadConfig, Setting
from harness.engines import InternalMovedError, view_of
from harness.faults import FAULTS, plant_after_start, plant_before_start, plant_in_worker
from harness.faults.patch import replace_name
from harness.faults.weights import DAMAGE_FACTOR, host_copies
from tests.live import COPYING, PREFETCH, UVA, worker_of


class Recorder:
    """An engine's modules that note what is replaced, and a worker that knows no fault."""

    def __init__(self):
        self.loaded = {}
        self.modules = self

    def module(self, role):
        module = self.loaded.setdefault(role, ModuleType(role))
        module.set_offloader = module.should_pin_memory = print
        module.PrefetchOffloader = type("P", (), {"_get_next_prefetch_index": print})
        waits = {"_wait_for_copy": print, "_wait_for_reader": print}
        module.ModuleOffloader = type("M", (), waits)
        return module

    def rpc(self, method, *args):
        return []


@pytest.mark.parametrize("name", FAULTS.names())
def test_every_fault_is_documented_and_named_as_registered(name):
    fault = FAULTS.get(name)

    assert fault.name == name
    assert set(fault.killed_by) <= {"effect", "placement", "memory", "tokens"}
    assert fault.killed_by
    assert fault.summary
    assert fault.seen_in is None or re.fullmatch(r"[\w.-]+#\d+", fault.seen_in)


@pytest.mark.parametrize(
    ("fault", "runner", "offload", "reason"),
    [
        ("offloader-not-installed", "v1", UVA, "runner v1 is not one of v2"),
        ("wrong-refill-target", "v2", UVA, "backend uva is not one of prefetch"),
        ("host-copy-damaged", "v2", OffloadConfig(), "backend none is not one of uva, prefetch"),
    ],
)
def test_a_fault_that_does_not_apply_says_so_and_touches_nothing(fault, runner, offload, reason):
    engine = Recorder()
    setting = Setting(runner=runner, offload=offload, faults=(fault,))

    (note,) = plant_before_start(setting, engine)

    assert reason in note
    assert engine.loaded == {}
    assert plant_after_start(setting, engine) == []


@pytest.mark.parametrize("name", [n for n in FAULTS.names() if FAULTS.get(n).before_start])
def test_a_planted_fault_says_so(name):
    engine = Recorder()
    setting = Setting(runner="v2", offload=PREFETCH, faults=(name,))

    (note,) = plant_before_start(setting, engine)

    assert note == f"fault {name} is planted: {FAULTS.get(name).summary}"
    assert len(engine.loaded) == 1


def test_a_fault_that_did_not_reach_the_worker_is_an_error():
    setting = Setting(runner="v2", offload=PREFETCH, faults=("pin-flag-ignored",))

    with pytest.raises(HarnessError, match="'pin-flag-ignored' did not reach the process"):
        plant_after_start(setting, Recorder())


def test_a_seam_that_is_gone_is_named():
    with pytest.raises(InternalMovedError, match=r"SomeClass\._wait"):
        replace_name(type("SomeClass", (), {}), "_wait", print)


def test_the_ring_wraps_without_regard_to_slots():
    engine = Recorder()
    setting = Setting(offload=PREFETCH, faults=("wrong-refill-target",))
    plant_before_start(setting, engine)

    next_index = engine.loaded["offloader.prefetch"].PrefetchOffloader._get_next_prefetch_index

    assert [next_index(i, 3, 4) for i in range(4)] == [3, 0, 1, 2]


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("offload", [UVA, COPYING, PREFETCH], ids=["uva", "copying", "prefetch"])
def test_the_largest_host_copy_of_the_middle_layer_is_damaged(live_engine, runner, offload):
    engine = live_engine(runner=runner, offload=offload)
    before = {name: copy.clone() for name, copy in host_copies(view_of(worker_of(engine))).items()}
    clean = engine.generate(0)

    done = engine.rpc("harness_fault", "harness.faults:plant_in_worker", "host-copy-damaged")

    after = host_copies(view_of(worker_of(engine)))
    damaged = [name for name in after if not before[name].equal(after[name])]
    layers = sorted({int(name.split(".")[2]) for name in after})
    assert damaged == [f"model.layers.{layers[len(layers) // 2]}.mlp.gate_up_proj.weight"]
    assert damaged[0] in done
    rolled = before[damaged[0]].roll(1, dims=0)
    assert after[damaged[0]].equal(rolled * DAMAGE_FACTOR)
    assert [o.token_ids for o in engine.generate(0)] != [o.token_ids for o in clean]
    assert "host-copy-damaged" in engine.rpc("harness_planted")


def test_a_control_with_nothing_to_damage_does_not_pass_silently(live_engine):
    engine = live_engine(runner="v2")

    with pytest.raises(HarnessError, match="found no offloaded parameter"):
        plant_in_worker(view_of(worker_of(engine)), "host-copy-damaged")


def test_faults_only_touch_their_own_module():
    engine = Recorder()
    plant_before_start(
        Setting(runner="v2", offload=UVA, faults=("offloader-not-installed",)), engine
    )

    assert list(engine.loaded) == ["runner.v2"]
    assert engine.loaded["runner.v2"].set_offloader(SimpleNamespace()) is None
