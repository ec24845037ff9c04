"""An engine's own statement of what it supports, read without loading the engine."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core import Json, Registry

STATEMENTS: Registry[Mapping[str, Json]] = Registry("engine")
STATEMENTS.register("reference", "harness.engines.capabilities:REFERENCE")
STATEMENTS.register("vllm", "harness.engines.capabilities:VLLM")
STATEMENTS.register("vllm-cpu-emulation", "harness.engines.capabilities:VLLM")
STATEMENTS.register("accelerate", "harness.engines.capabilities:ACCELERATE")


def engine_supports(engine: str) -> Mapping[str, Json]:
    """What `engine` says of itself; the scripted fake says nothing.

    Raises:
        UsageError: there is no adapter for `engine`.
    """
    return {} if engine == "fake" else STATEMENTS.get(engine)
