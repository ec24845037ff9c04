"""What a fault is, and the table of them. A run with a fault in it is a mutant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.core import Backend, Registry, Runner, Setting
from harness.engines.base import EngineModules, EngineView


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One deliberate defect."""

    name: str
    summary: str
    """One sentence: what is wrong in the engine."""
    seen_in: str | None = None
    """A public report of the same defect, e.g. `vllm#54975`."""
    killed_by: tuple[str, ...]
    """Judges that must object; each can do so alone."""
    blind: str = ""
    """Where no judge can see it, and why."""
    runners: tuple[Runner, ...] = ("v1", "v2")
    backends: tuple[Backend, ...] = ("uva", "prefetch")
    before_start: Callable[[EngineModules], None] | None = None
    """Replaces names in the engine's modules before it is built."""
    after_start: Callable[[EngineView], str] | None = None
    """Damages the live engine where its worker lives; returns what it did."""

    def __post_init__(self) -> None:
        assert (self.before_start is None) != (self.after_start is None), "one stage each"

    def why_not(self, setting: Setting) -> str | None:
        """Why this fault changes nothing under `setting`; None when it applies."""
        backend = setting.offload.resolved_backend
        if backend not in self.backends:
            return f"backend {backend} is not one of {', '.join(self.backends)}"
        if setting.runner is not None and setting.runner not in self.runners:
            return f"runner {setting.runner} is not one of {', '.join(self.runners)}"
        return None


FAULTS: Registry[Fault] = Registry("fault")
FAULTS.register("offloader-not-installed", "harness.faults.wiring:OFFLOADER_NOT_INSTALLED")
FAULTS.register("pin-flag-ignored", "harness.faults.wiring:PIN_FLAG_IGNORED")
FAULTS.register("host-copy-damaged", "harness.faults.weights:HOST_COPY_DAMAGED")
FAULTS.register("wrong-refill-target", "harness.faults.ordering:WRONG_REFILL_TARGET")
FAULTS.register("no-wait-for-copy", "harness.faults.ordering:NO_WAIT_FOR_COPY")
FAULTS.register("no-wait-for-reader", "harness.faults.ordering:NO_WAIT_FOR_READER")
