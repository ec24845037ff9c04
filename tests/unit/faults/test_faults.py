import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from harness.core import HarnessError, OffloadConfig, Setting
from harness.engines import InternalMovedError, view_of
from harness.faults import (
    FAULTS,
    Fault,
    plant_after_start,
    plant_before_start,
    plant_in_worker,
    planted_faults,
)
from harness.faults.base import mode_of
from harness.faults.patch import replace_name
from harness.faults.weights import DAMAGE_FACTOR, host_copies
from harness.settings.lifecycles import LIFECYCLES
from tests.live import COPYING, PREFETCH, UNPINNED, UVA, worker_of


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
    known = {"effect", "placement", "memory", "tokens", "ordering", "integrity"}
    assert set(fault.killed_by) <= known
    assert fault.killed_by or fault.kind != "mutant"
    assert fault.summary
    assert len(fault.summary.splitlines()) == 1
    assert all(re.fullmatch(r"[\w.-]+#\d+", report) for report in fault.seen_in)


@pytest.mark.parametrize(
    ("fault", "runner", "offload", "reason"),
    [
        ("offloader-not-installed", "v1", UVA, "runner v1 is not one of v2"),
        ("wrong-refill-target", "v2", UVA, "mode uva is not one of prefetch"),
        (
            "host-copy-damaged",
            "v2",
            OffloadConfig(),
            "mode none is not one of uva, uva-copy, prefetch",
        ),
    ],
)
def test_a_fault_that_does_not_apply_says_so_and_touches_nothing(fault, runner, offload, reason):
    engine = Recorder()
    setting = Setting(runner=runner, offload=offload, faults=(fault,))

    (note,) = plant_before_start(setting, engine)

    assert reason in note
    assert engine.loaded == {}
    assert plant_after_start(setting, engine) == []


@pytest.fixture
def reference():
    """The reference engine's modules; what a fault replaces in them is put back."""
    from harness.engines.reference import ReferenceModules

    modules = [m for name, m in sys.modules.items() if name.startswith("harness.refengine")]
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type)]
    owners = {
        id(o): o for o in (*modules, *classes) if "harness" in getattr(o, "__module__", o.__name__)
    }
    before = {key: dict(vars(owner)) for key, owner in owners.items()}

    def changed():
        return {
            f"{owners[key].__name__}.{name}": (owners[key], name, value)
            for key, values in before.items()
            for name, value in values.items()
            if vars(owners[key]).get(name) is not value
        }

    yield SimpleNamespace(modules=ReferenceModules(), changed=changed)
    for owner, name, value in changed().values():
        setattr(owner, name, value)


PLANTABLE = [
    fault.name
    for fault in map(FAULTS.get, FAULTS.names())
    if fault.before_start and "reference" in fault.engines
]


@pytest.mark.parametrize("name", PLANTABLE)
def test_a_planted_fault_says_so_and_replaces_what_is_there(reference, name):
    fault = FAULTS.get(name)
    mode = fault.modes[-1]
    setting = Setting(
        runner=fault.runners[0],
        offload=fault.offload(mode),
        enforce_eager=fault.enforce_eager,
        faults=(name,),
    )

    (note,) = plant_before_start(setting, reference)

    assert note == f"fault {name} is planted: {fault.summary}"
    assert reference.changed()


@pytest.mark.parametrize("name", PLANTABLE)
def test_every_mode_and_runner_of_a_fault_is_one_it_applies_to(name):
    fault = FAULTS.get(name)

    for mode in fault.modes:
        for runner in fault.runners:
            setting = Setting(
                runner=runner, offload=fault.offload(mode), enforce_eager=fault.enforce_eager
            )
            assert mode_of(setting.offload) == mode
            assert fault.why_not(setting) is None


def test_every_defect_of_the_list_runs():
    assert {
        "offloader-not-installed", "no-wait-for-copy", "no-wait-for-reader", "wrong-refill-target",
        "host-block-recycled", "unoffloaded-by-transform", "reload-misses-master",
        "decode-bypasses-hook", "tied-by-pointer", "pin-flag-cached", "replay-of-temporary",
        "offloader-outlives-engine", "selector-matches-nothing",
    } <= {n for n in FAULTS if not FAULTS.get(n).needs}  # fmt: skip


def test_every_lifecycle_but_the_long_ones_has_a_defect_that_only_it_shows():
    shown = {f.workload for f in map(FAULTS.get, FAULTS) if f.kind == "mutant" and f.seen_in}

    assert shown - {"default"} == set(LIFECYCLES) - {"sleep-cycles", "reload-cycles"}


def test_a_fault_that_cannot_run_is_not_planted(monkeypatch):
    waiting = Fault(name="waiting", summary="", killed_by=("tokens",), needs="reload step")
    monkeypatch.setattr("harness.faults.plant.FAULTS", {"waiting": waiting})
    setting = Setting(runner="v2", offload=PREFETCH, faults=("waiting",))

    (note,) = plant_before_start(setting, Recorder())

    assert "the engine has no reload step yet" in note


@pytest.mark.parametrize(
    ("name", "offload", "reason"),
    [
        ("pin-flag-cached", PREFETCH, "pin_memory is left on"),
        ("selector-matches-nothing", UVA, "no selector is given"),
        ("replay-of-temporary", COPYING, "every step runs eagerly: there is no recorded graph"),
    ],
)
def test_a_flag_that_is_not_used_cannot_be_broken(name, offload, reason):
    assert FAULTS.get(name).why_not(Setting(offload=offload)) == reason


def test_listing_the_catalogue_loads_neither_torch_nor_an_engine():
    code = "import sys, harness.faults as f; print([f.FAULTS.get(n).name for n in f.FAULTS][:1], "
    code += "[m for m in ('torch', 'harness.refengine') if m in sys.modules])"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert child.stdout.strip().endswith("[]")


def test_a_fault_that_did_not_reach_the_worker_is_an_error():
    setting = Setting(runner="v2", offload=UNPINNED, faults=("pin-flag-ignored",))

    with pytest.raises(HarnessError, match="'pin-flag-ignored' did not reach the process"):
        plant_after_start(setting, Recorder())


def test_only_faults_that_apply_and_are_in_the_worker_count_as_planted():
    engine = SimpleNamespace(rpc=lambda method: ["offloader-not-installed", "host-copy-damaged"])
    names = ("offloader-not-installed", "host-copy-damaged", "wrong-refill-target")

    def planted(runner, offload):
        return planted_faults(Setting(runner=runner, offload=offload, faults=names), engine)

    assert planted("v2", PREFETCH) == ("offloader-not-installed", "host-copy-damaged")
    assert planted("v1", UVA) == ("host-copy-damaged",)
    assert planted("v2", OffloadConfig()) == ()


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
