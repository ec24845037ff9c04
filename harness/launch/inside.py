"""Runs in every process of a real engine, before it builds anything: faults, recorders, taps.

A `vllm.general_plugins` entry point; the launcher's folder on PYTHONPATH registers it.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

from harness.core import Setting, decode
from harness.core.engine_names import EMULATION
from harness.engines.vllm import emulation, taps
from harness.engines.vllm.args import ENV_SETTING
from harness.engines.vllm.device import live_device
from harness.engines.vllm.modules import VllmModules
from harness.engines.vllm.view import note_warnings
from harness.faults import plant_before_start
from harness.observe import install

_entered: list[str] = []


def enter() -> None:
    """Prepare this process for the setting in its environment; a second call does nothing."""
    text = os.environ.get(ENV_SETTING)
    if not text or text in _entered:
        return
    _entered.append(text)
    setting = decode(Setting, json.loads(text))
    note_warnings()
    modules = VllmModules()
    if setting.engine == EMULATION:
        emulation.install()
    for note in plant_before_start(setting, SimpleNamespace(modules=modules)):
        sys.stdout.write(f"harness: {note}\n")
    taps.note_refills(modules)
    if not setting.instruments:
        return
    undo = install(setting.instruments, modules)
    device = live_device(emulation.device_name())
    undo()
    assert device is not None, "its kind was named"
    taps.tap_copies(modules, device)
    if device.name == "cuda" and setting.enforce_eager:
        taps.tap_streams(device)
