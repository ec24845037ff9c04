"""A started reference engine in the test's own process, for tests of views and probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.core import OffloadConfig, Setting, Workload
from harness.settings import load_model, load_workload

PREFETCH = OffloadConfig(offload_group_size=4, offload_num_in_group=2, offload_prefetch_step=3)
UVA = OffloadConfig(cpu_offload_gb=0.001)
COPYING = replace(UVA, uva=False)
UNPINNED = replace(PREFETCH, pin_memory=False)


def build_workload() -> Workload:
    """Two prompts, few tokens, on the shipped model."""
    return load_workload("short", load_model("tiny-llama"))


def set_engine_env(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    """What a launched engine would find in its environment, in this process until the test ends."""
    for name, value in setting.engine_env().items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.fixture
def live_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`start(**fields of Setting)` -> a started ReferenceEngine in this process."""
    from harness.engines.reference import ReferenceEngine

    started = []

    def start(**fields: Any) -> ReferenceEngine:
        setting = Setting(**fields)
        set_engine_env(monkeypatch, setting)
        engine = ReferenceEngine()
        started.append(engine)
        engine.start(setting, build_workload(), num_threads=1)
        return engine

    yield start
    for engine in started:
        engine.shutdown()


def worker_of(engine: Any) -> Any:
    """The worker of an engine in this process."""
    core = engine.llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker
