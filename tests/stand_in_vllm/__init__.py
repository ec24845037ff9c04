"""Modules with the shapes of vLLM's that taps, faults and the emulation take hold of.

Each test gets copies of its own, since those are changed in place; `inspect` must find the source.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness.engines.vllm.modules import PATHS

FILES = {
    "offloader.base": "offloader_base.py",
    "offloader": "offloader_base.py",
    "offloader.prefetch": "prefetch.py",
    "offloader.uva": "uva.py",
    "layers.utils": "layers_utils.py",
    "runner.v1": "runner_v1.py",
    "runner.v2": "runner_v2.py",
    "runner.cpu_v1": "cpu_v1.py",
}
"""Role -> file, in the order they import each other."""


def install_vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Make these modules what `import vllm...` finds during one test.

    Returns:
        Role with dots as underscores -> module.
    """
    vllm = ModuleType("vllm")
    vllm.__version__ = "0.0.stand-in"  # type: ignore[attr-defined]
    envs = ModuleType("vllm.envs")
    envs.VLLM_USE_V2_MODEL_RUNNER = True  # type: ignore[attr-defined]
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(device_type="cpu")  # type: ignore[attr-defined]
    for module in (vllm, envs, platforms):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = {"vllm": vllm}
    for role, file in FILES.items():
        path = PATHS[role]
        if role == "offloader":
            monkeypatch.setitem(sys.modules, path, found["offloader_base"])
            continue
        spec = importlib.util.spec_from_file_location(path, Path(__file__).parent / file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path, module)
        spec.loader.exec_module(module)
        found[role.replace(".", "_")] = module
    return SimpleNamespace(**found)
