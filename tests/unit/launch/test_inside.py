"""What the plugin does in a process of the engine, on modules that stand in for vLLM's."""

import json
import logging

import pytest
import torch

from harness.core import OffloadConfig, Setting, encode
from harness.core.engine_names import EMULATION
from harness.engines.vllm import device as device_module
from harness.engines.vllm import emulation, taps
from harness.engines.vllm import view as view_module
from harness.engines.vllm.args import ENV_SETTING
from harness.launch import inside
from tests.stand_in_vllm import install_vllm

PREFETCH = OffloadConfig(offload_group_size=1, offload_prefetch_step=3)
COPY = torch.Tensor.copy_


@pytest.fixture
def vllm(monkeypatch):
    """Stand-ins in a process that no plugin has entered; all is put back."""
    monkeypatch.delenv(ENV_SETTING, raising=False)
    monkeypatch.setattr(inside, "_entered", [])
    monkeypatch.setattr(emulation, "_is_on", [])
    monkeypatch.setattr(emulation, "_host", {})
    monkeypatch.setattr(device_module, "_devices", [])
    monkeypatch.setattr("harness.engines.base.PLANTED", [])
    monkeypatch.setattr("harness.faults.plant.PLANTED", [])
    monkeypatch.setattr(taps, "REFILLS", {})
    monkeypatch.setattr(taps, "_last", [])
    monkeypatch.setattr(view_module, "WARNINGS", [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    capturing = torch.cuda.is_current_stream_capturing
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    handlers = list(logging.getLogger("vllm").handlers)
    yield install_vllm(monkeypatch)
    logging.getLogger("vllm").handlers = handlers


@pytest.fixture
def enter(monkeypatch):
    plain = logging.getLogRecordFactory()

    def call(engine="vllm", **fields):
        setting = Setting(engine=engine, offload=PREFETCH, **fields)
        monkeypatch.setenv(ENV_SETTING, json.dumps(encode(setting)))
        inside.enter()

    yield call
    logging.setLogRecordFactory(plain)


def methods_of(vllm):
    owners = (vllm.offloader_prefetch.PrefetchOffloader, vllm.offloader_prefetch._ModuleOffloader)
    return {
        f"{owner.__name__}.{name}": value
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value)
    }


def changed(vllm, before):
    return sorted(name for name, value in methods_of(vllm).items() if before[name] is not value)


REFILLS = ["PrefetchOffloader._wait_for_layer", "_ModuleOffloader.start_onload_to_static"]


def test_without_the_variable_nothing_is_touched(vllm):
    before = methods_of(vllm)

    inside.enter()

    assert [] == changed(vllm, before)
    assert device_module.live_device() is None


def test_refills_are_noted_in_every_process(vllm, enter):
    before = methods_of(vllm)

    enter()

    assert REFILLS == changed(vllm, before)
    assert device_module.live_device() is None
    assert not emulation.is_on()


def test_entering_twice_is_entering_once(vllm, enter):
    enter(instruments=("ordering",), faults=("refill-dropped",))
    before = methods_of(vllm)
    observers = list(device_module.live_device().observers)

    enter(instruments=("ordering",), faults=("refill-dropped",))

    assert [] == changed(vllm, before)
    assert observers == device_module.live_device().observers


def test_recorders_are_on_the_device_and_copies_are_led_through_it(vllm, enter):
    before = methods_of(vllm)

    enter(instruments=("ordering", "integrity"))

    assert REFILLS == changed(vllm, before)
    device = device_module.live_device()
    names = [type(observer).__name__ for observer in device.observers]
    assert ("cpu", ["CopyRecorder", "OrderingRecorder", "WeightRecorder"]) == (device.name, names)
    assert torch.Tensor.copy_ is COPY


def test_devices_made_later_are_left_alone(vllm, enter):
    maker = device_module.get_device

    enter(instruments=("ordering",))

    assert device_module.get_device is maker
    assert [] == maker("cpu").observers


def test_faults_are_planted_and_said(vllm, enter, capsys):
    before = methods_of(vllm)
    enter(faults=("refill-dropped",))

    assert ["PrefetchOffloader._start_prefetch", *REFILLS] == changed(vllm, before)
    said = capsys.readouterr().out
    assert "harness: fault refill-dropped is planted: one module's slot is never refilled" in said
    started = []
    offloader = vllm.offloader_prefetch.PrefetchOffloader(3)
    offloader.module_offloaders = [Starter(started, index) for index in range(4)]
    for index in range(4):
        offloader._start_prefetch(index)
    assert [0, 1, 3] == started


class Starter:
    """A module's offloader that only says when its copy is started."""

    def __init__(self, started, index):
        self.started, self.index = started, index

    def start_onload_to_static(self):
        self.started.append(self.index)


def test_a_fault_that_does_not_apply_is_said_and_touches_nothing(vllm, enter, capsys):
    set_offloader = vllm.runner_v2.set_offloader

    enter(faults=("offloader-not-installed",), runner="v1")

    assert "does not apply and changes nothing: runner v1" in capsys.readouterr().out
    assert vllm.runner_v2.set_offloader is set_offloader


def test_the_emulation_is_installed_for_its_engine_only(vllm, enter):
    enter(engine=EMULATION)

    assert emulation.is_on()
    assert "cpu" == emulation.device_name()


def test_warnings_of_vllm_are_kept_from_then_on(vllm, enter):
    logger = logging.getLogger("vllm.some.module")
    logger.warning("before")
    enter()
    logger.warning("after")

    assert ["after"] == view_module.WARNINGS
