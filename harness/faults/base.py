"""What a fault is, and the table of them. A run with a fault in it is a mutant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.core import OffloadConfig, Registry, Runner, Setting
from harness.core.engine_names import VLLM
from harness.engines.base import EngineModules, EngineView

Kind = Literal["mutant", "equivalent", "test"]
Mode = Literal["none", "uva", "uva-copy", "prefetch", "cpu_offload", "disk_offload", "device_map"]

OFFLOADS: Mapping[Mode, OffloadConfig] = {
    "none": OffloadConfig(),
    "uva": OffloadConfig(cpu_offload_gb=1),
    "uva-copy": OffloadConfig(cpu_offload_gb=1, uva=False),
    "prefetch": OffloadConfig(offload_group_size=1, offload_prefetch_step=3),
    "cpu_offload": OffloadConfig(offload_backend="cpu_offload"),
    "disk_offload": OffloadConfig(offload_backend="disk_offload"),
    "device_map": OffloadConfig(
        offload_backend="device_map",
        device_map={"": "cpu", "model.layers.2": "disk", "model.layers.5": "disk"},
    ),
}
"""How each mode is tried unless a fault says otherwise; a ring of 8 that 3 does not divide."""
WITH_VLLM = ("reference", *VLLM)
OFFLOADING: tuple[Mode, ...] = ("uva", "uva-copy", "prefetch")
ACCELERATE_MODES: tuple[Mode, ...] = ("cpu_offload", "disk_offload", "device_map")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One deliberate defect, or a change that only looks like one."""

    name: str
    summary: str
    """One sentence: what is wrong in the engine."""
    kind: Kind = "mutant"
    """`equivalent` changes nothing that matters; `test` only serves to make a bad test."""
    seen_in: tuple[str, ...] = ()
    """Public reports of the same defect, or the nearest to it, e.g. `vllm#54975`."""
    defect_class: str = ""
    """Letter of the class in the catalogue of public reports, A to J."""
    killed_by: tuple[str, ...] = ()
    """Judges that must object; each can do so alone. Of an equivalent: the ones that may."""
    says: str = ""
    """Words that an objection to an equivalent must hold."""
    blind: str = ""
    """Where no judge can see it, and why."""
    needs: str = ""
    """What the engine lacks to run it; empty when it runs."""
    engines: tuple[str, ...] = ("reference",)
    """Engines whose names it knows how to replace."""
    runners: tuple[Runner, ...] = ("v1", "v2")
    modes: tuple[Mode, ...] = OFFLOADING
    offloads: Mapping[Mode, OffloadConfig] = field(default_factory=dict)
    """Settings to try it in, where `OFFLOADS` would not show it."""
    schedules: tuple[str, ...] = ("in_order",)
    """Schedules of the simulated device to try it in."""
    model: str = "tiny-llama"
    """Model to try it on."""
    workload: str = "default"
    """Where it shows: the default workload, cut short, or a lifecycle by its name."""
    enforce_eager: bool = True
    """False where it shows in recorded graphs only."""
    only_if: Callable[[OffloadConfig], str | None] | None = None
    """Why it changes nothing under these offload fields; None when it applies."""
    before_start: Callable[[EngineModules], None] | None = None
    """Replaces names in the engine's modules before it is built."""
    in_vllm: Callable[[EngineModules], None] | None = None
    """The same in vLLM, where its names differ."""
    after_start: Callable[[EngineView], str] | None = None
    """Damages the live engine where its worker lives; returns what it did."""

    def __post_init__(self) -> None:
        stages = [s for s in (self.before_start, self.after_start) if s is not None]
        assert len(stages) == (0 if self.needs else 1), "one stage each, none when it cannot run"
        assert self.killed_by or self.kind != "mutant", "a mutant names who must object"

    def before(self, engine: str) -> Callable[[EngineModules], None] | None:
        """What replaces names in the modules of `engine` before it is built."""
        return self.in_vllm if engine in VLLM and self.in_vllm else self.before_start

    @property
    def num_judges(self) -> int:
        """How many of `killed_by` must object: two where two are named."""
        return min(2, len(self.killed_by))

    def offload(self, mode: Mode) -> OffloadConfig:
        """The setting to try it in."""
        return self.offloads.get(mode, OFFLOADS[mode])

    def modes_in(self, engine: str) -> tuple[Mode, ...]:
        """Those of its modes that an engine has."""
        is_accelerate = engine == "accelerate"
        return tuple(m for m in self.modes if (m in ACCELERATE_MODES) == is_accelerate)

    def why_not(self, setting: Setting) -> str | None:
        """Why this fault changes nothing under `setting`; None when it applies."""
        if self.needs:
            return f"the engine has no {self.needs} yet"
        if setting.engine not in self.engines:
            return f"engine {setting.engine} is not one of {', '.join(self.engines)}"
        mode, modes = mode_of(setting.offload), self.modes_in(setting.engine)
        if mode not in modes:
            return f"offload mode {mode} is not one of {', '.join(modes)}"
        if setting.runner is not None and setting.runner not in self.runners:
            return f"runner {setting.runner} is not one of {', '.join(self.runners)}"
        if setting.enforce_eager and not self.enforce_eager:
            return "every step runs eagerly: there is no recorded graph"
        return self.only_if(setting.offload) if self.only_if is not None else None


def mode_of(offload: OffloadConfig) -> Mode:
    """How weights reach compute: at home, as a view, by a copy on forward, or by prefetch."""
    backend = offload.resolved_backend
    return "uva-copy" if backend == "uva" and not offload.uva else backend


FAULTS: Registry[Fault] = Registry("fault")
"""Filled by the package: every `Fault` at the top of one of its modules."""
