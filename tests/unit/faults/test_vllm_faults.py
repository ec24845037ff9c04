"""Faults of vLLM, on modules that stand in for its own."""

from types import SimpleNamespace

import pytest
import torch

from harness.core import Setting
from harness.engines.base import InternalMovedError
from harness.engines.vllm import emulation, taps
from harness.engines.vllm.modules import VllmModules
from harness.engines.vllm.view import VllmView
from harness.faults import FAULTS, plant_before_start, plant_in_worker
from harness.faults.base import VLLM
from harness.faults.weights import host_copies
from tests.stand_in_vllm import install_vllm
from tests.stand_in_vllm.worker import make_worker

PLACES = {
    "no-wait-for-copy": ("offloader_prefetch", "PrefetchOffloader", "_wait_for_layer"),
    "no-wait-for-reader": ("offloader_prefetch", "_ModuleOffloader", "start_onload_to_static"),
    "offloader-not-installed": ("runner_v2", None, "set_offloader"),
    "refill-dropped": ("offloader_prefetch", "PrefetchOffloader", "_start_prefetch"),
    "wrong-refill-target": ("offloader_prefetch", None, "_get_next_prefetch_index"),
}
"""Fault -> module, class (None: the module itself), and the one name that it replaces."""


def faults_of_vllm():
    every = [FAULTS.get(name) for name in FAULTS]
    return [f.name for f in every if set(f.engines) & set(VLLM) and f.before_start is not None]


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setattr("harness.faults.plant.PLANTED", [])
    monkeypatch.setattr(emulation, "_is_on", [])
    monkeypatch.setattr(emulation, "_host", {})
    capturing = torch.cuda.is_current_stream_capturing
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    return install_vllm(monkeypatch)


def names_in(vllm):
    """(module, class, name) -> value of all that a fault could replace."""
    found = {}
    for role, module in vars(vllm).items():
        for name, value in vars(module).items():
            found[role, None, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found |= {(role, value.__name__, n): v for n, v in vars(value).items()}
    return found


def plant(name, engine="vllm"):
    fault = FAULTS.get(name)
    offload = fault.offload(fault.modes_in(engine)[-1])
    setting = Setting(engine=engine, runner=fault.runners[-1], offload=offload, faults=(name,))
    (note,) = plant_before_start(setting, SimpleNamespace(modules=VllmModules()))
    assert f"fault {name} is planted: {fault.summary}" == note


def owner_of(vllm, place):
    module, cls, _ = place
    return getattr(vllm, module) if cls is None else getattr(getattr(vllm, module), cls)


def test_every_fault_of_vllm_has_its_place_here():
    assert sorted(PLACES) == sorted(faults_of_vllm())
    assert {n for n in FAULTS if FAULTS.get(n).in_vllm} <= set(PLACES)


@pytest.mark.parametrize(
    ("name", "engine"), [(n, e) for n in sorted(PLACES) for e in VLLM if e in FAULTS.get(n).engines]
)
def test_a_fault_replaces_the_one_name_it_is_about(vllm, name, engine):
    before = names_in(vllm)

    plant(name, engine)

    after = names_in(vllm)
    assert [PLACES[name]] == [place for place in before if after[place] is not before[place]]
    assert set(before) == set(after)


@pytest.mark.parametrize("name", sorted(PLACES))
def test_a_name_that_is_gone_from_vllm_is_named(vllm, name):
    delattr(owner_of(vllm, PLACES[name]), PLACES[name][-1])

    with pytest.raises((InternalMovedError, AttributeError), match=PLACES[name][-1]):
        plant(name)


@pytest.mark.parametrize("name", [n for n in sorted(PLACES) if FAULTS.get(n).in_vllm])
def test_where_names_differ_the_reference_engines_are_not_looked_for(name):
    fault = FAULTS.get(name)

    assert fault.before("vllm") is fault.in_vllm is not fault.before_start
    assert fault.before("reference") is fault.before_start


class Stream:
    """A copy stream that keeps what it was told to wait for."""

    def __init__(self):
        self.waits = []

    def wait_event(self, event):
        self.waits.append(event)

    wait_stream = wait_event

    def record_event(self, event):
        """Recording is no wait."""


def offloader_of(vllm, num=4, step=3):
    emulation.install()
    made = vllm.offloader_prefetch.PrefetchOffloader(step)
    layers = made.wrap_modules([torch.nn.Linear(2, 2, bias=False) for _ in range(num)])
    made.post_init()
    made.copy_stream = Stream()
    for one in made.module_offloaders:
        one.copy_stream = made.copy_stream
    return made, layers


def run(layers):
    with torch.no_grad():
        for layer in layers:
            layer(torch.ones(1, 2))


def test_right_copies_wait_for_the_reader_and_right_readers_for_the_copy(vllm):
    offloader, layers = offloader_of(vllm)
    run(layers)

    assert 8 == len(offloader.copy_stream.waits)


def test_without_the_readers_wait_copies_are_made_and_wait_for_nothing(vllm):
    plant("no-wait-for-reader")
    offloader, _ = offloader_of(vllm)
    one = offloader.module_offloaders[1]
    (each,) = one._param_offloaders.values()
    each._gpu_buffer.zero_()

    one.start_onload_to_static()

    assert [] == offloader.copy_stream.waits
    assert torch.equal(each._cpu_storage, each._gpu_buffer)
    offloader.copy_stream.wait_event("later")
    assert ["later"] == offloader.copy_stream.waits


def test_without_the_copys_wait_only_copies_wait(vllm):
    plant("no-wait-for-copy")
    offloader, layers = offloader_of(vllm)
    run(layers)

    assert ["what computes from the slot"] * 4 == offloader.copy_stream.waits


def test_the_ring_wraps_without_regard_to_slots(vllm):
    right = vllm.offloader_prefetch._get_next_prefetch_index
    plant("wrong-refill-target")
    wrong = vllm.offloader_prefetch._get_next_prefetch_index

    assert [3, 1, 2, 0] == [right(i, 3, 4) for i in range(4)]
    assert [3, 0, 1, 2] == [wrong(index=i, prefetch_step=3, module_count=4) for i in range(4)]


def test_a_wrong_target_shows_in_the_refills_that_were_seen(vllm, monkeypatch):
    monkeypatch.setattr(taps, "REFILLS", {})
    monkeypatch.setattr(taps, "_last", [])
    plant("wrong-refill-target")
    taps.note_refills(VllmModules())
    _, layers = offloader_of(vllm)
    run(layers)

    assert {0: [3], 1: [0], 2: [1], 3: [2]} == taps.REFILLS


def test_dropped_refills_leave_a_slot_as_it_was_first_filled(vllm):
    plant("refill-dropped")
    offloader, layers = offloader_of(vllm)
    (each,) = offloader.module_offloaders[2]._param_offloaders.values()
    assert torch.equal(each._cpu_storage, each._gpu_buffer)
    each._gpu_buffer.zero_()
    run([*layers, *layers])

    assert not each._gpu_buffer.any()


def test_an_offloader_that_is_not_installed_leaves_the_old_one(vllm):
    plant("offloader-not-installed")

    vllm.runner_v2.GPUModelRunner(None, object())

    assert "NoopOffloader" == type(vllm.offloader_base.get_offloader()).__name__


@pytest.mark.parametrize("kind", ["prefetch", "uva"])
def test_the_host_copy_of_the_middle_layer_is_damaged_and_no_other(vllm, monkeypatch, kind):
    monkeypatch.setattr("harness.engines.base.PLANTED", [])
    emulation.install()
    made = {
        "prefetch": lambda: vllm.offloader_prefetch.PrefetchOffloader(3),
        "uva": lambda: vllm.offloader_uva.UVAOffloader(1000),
    }
    view = VllmView(make_worker(vllm.runner_v2, made[kind]()))
    before = {name: copy.clone() for name, copy in host_copies(view).items()}

    assert "model.layers.2.mlp.weight" in plant_in_worker(view, "host-copy-damaged")

    damaged = [n for n, copy in host_copies(view).items() if not torch.equal(before[n], copy)]
    assert ["model.layers.2.mlp.weight"] == damaged
