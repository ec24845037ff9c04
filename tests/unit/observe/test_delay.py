"""Delay without a GPU: which work is held up, on which stream, and where it is refused."""

import subprocess
import sys

import pytest
import torch

from harness.core import OffloadConfig, Setting, SettingError
from harness.observe.delay import delay_device
from harness.observe.instruments import attach
from harness.refengine.device import SimulatedDevice


class Bench:
    """A stand-in for a cuda device; its log holds spins, copies and work in host order."""

    def __init__(self, *instruments):
        self.device = SimulatedDevice()
        self.device.name = "cuda"
        self.log = []
        delay_device(self.device, instruments, self.spin)
        self.device.observers.append(self)
        self.side = self.device.new_stream("copy")
        self.slot = self.device.empty((2,), torch.float32, kind="buffer_pool")
        self.other = self.device.empty((2,), torch.float32)

    def spin(self, device):
        self.log.append(("spin", device.current_stream().name))

    def on_launch(self, work):
        self.log.append((work.site, work.stream.name))

    on_copy = on_launch

    def run(self):
        with self.device.stream(self.side):
            self.device.copy_async(self.slot, self.other, site="prefetch")
            self.device.copy_async(self.other, self.slot, site="output")
        self.device.launch(lambda: None, reads=(self.other, self.slot), site="layer")
        self.device.launch(lambda: None, reads=(self.other,), site="sampler")
        return self.log


PREFETCH, OUTPUT = ("prefetch", "copy"), ("output", "copy")
LAYER, SAMPLER = ("layer", "default"), ("sampler", "default")


def test_copies_into_slots_are_held_up_on_the_copy_stream():
    assert Bench("delay-copy").run() == [("spin", "copy"), PREFETCH, OUTPUT, LAYER, SAMPLER]


def test_work_that_reads_slots_is_held_up_on_its_own_stream():
    assert Bench("delay-compute").run() == [PREFETCH, OUTPUT, ("spin", "default"), LAYER, SAMPLER]


def test_without_a_delay_nothing_is_held_up():
    assert Bench("ordering", "poison").run() == [PREFETCH, OUTPUT, LAYER, SAMPLER]


@pytest.mark.parametrize(
    ("name", "schedule"), [("delay-copy", "copy_late"), ("delay-compute", "compute_late")]
)
def test_where_the_schedule_is_a_choice_the_refusal_names_it(name, schedule):
    message = rf"instruments='{name}' needs device='cuda'.*: use schedule={schedule} instead"
    with pytest.raises(SettingError, match=message):
        attach(SimulatedDevice(), (name,))
    with pytest.raises(SettingError, match=message):
        Setting(instruments=(name,))
    with pytest.raises(SettingError, match=message):
        Setting(instruments=("ordering", name), engine_args={"device": "simulated"})

    offload = OffloadConfig(offload_group_size=2)
    on_cuda = Setting(instruments=(name,), engine_args={"device": "cuda"}, offload=offload)
    assert f"with.{name}" in on_cuda.setting_id


def test_poison_is_laid_before_the_delay_so_that_it_can_be_read():
    device = SimulatedDevice()
    device.name = "cuda"
    queued = []

    def spin(_):
        queued.append("spin")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.observe.delay.spin_on_current", spin)
        attach(device, ("poison", "delay-copy"))
    device.observers.append(type("Log", (Bench,), {"__init__": lambda self: None})())
    device.observers[-1].log = queued
    slot = device.empty((2,), torch.float32, kind="buffer_pool")
    device.copy_async(slot, device.empty((2,), torch.float32), site="c")
    assert queued == [("poison.c", "default"), "spin", ("c", "default")]


def test_the_module_loads_without_touching_a_gpu():
    code = "import harness.observe.delay, torch; assert not torch.cuda.is_initialized()"
    subprocess.run([sys.executable, "-c", code], check=True)
