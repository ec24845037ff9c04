"""Engine adapters by name; each module is imported when its engine is first asked for."""

from __future__ import annotations

from harness.core import Registry

from .base import (
    VIEWS,
    Engine,
    EngineModules,
    EngineOutOfMemory,
    EngineRefused,
    EngineView,
    InternalMovedError,
    view_of,
)

ENGINES: Registry[type[Engine]] = Registry("engine")
ENGINES.register("reference", "harness.engines.reference:ReferenceEngine")
ENGINES.register("vllm", "harness.engines.vllm.engine:VllmEngine")
ENGINES.register("vllm-cpu-emulation", "harness.engines.vllm.engine:EmulatedVllmEngine")
ENGINES.register("accelerate", "harness.engines.accelerate:AccelerateEngine")
ENGINES.register("fake", "harness.engines.fake:FakeEngine")

__all__ = [
    "ENGINES",
    "VIEWS",
    "Engine",
    "EngineModules",
    "EngineOutOfMemory",
    "EngineRefused",
    "EngineView",
    "InternalMovedError",
    "view_of",
]
