"""What one side of a comparison asks for: engine, runner, offload and environment.

Pure data: knows vLLM's names of fields, flags and variables, and nothing of how an engine runs.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .codec import Json, canonical_json
from .engine_names import VLLM
from .errors import SettingError
from .spread import name_spread

Runner = Literal["v1", "v2"]
Backend = Literal["none", "uva", "prefetch", "cpu_offload", "disk_offload", "device_map"]
ACCELERATE_BACKENDS = ("cpu_offload", "disk_offload", "device_map")
"""Backends of accelerate, by its own names; the others are vLLM's."""

ENV_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
ENV_MULTIPROCESSING = "VLLM_ENABLE_V1_MULTIPROCESSING"
ENV_DISABLE_PIN = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
ENV_DISABLE_UVA = "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA"
OWNED_ENV = (ENV_RUNNER, ENV_MULTIPROCESSING, ENV_DISABLE_PIN, ENV_DISABLE_UVA)
"""Variables that a Setting's own fields decide; `Setting.env` may not hold them."""

DELAYS = {"delay-copy": "copy_late", "delay-compute": "compute_late"}
"""Delays on real hardware -> the simulated device's schedule that shows the same."""
INSTRUMENTS = ("ordering", "integrity", "integrity-full", "poison", *DELAYS)
"""Recorders, and means to make a defect loud, that a Setting may ask for."""
DEFAULT_INSTRUMENTS: dict[str, tuple[str, ...]] = {
    "reference": ("ordering", "integrity"),
    "accelerate": ("integrity",),
}
"""Engine -> recorders in every run unless others are asked for; no entry has none."""

GIB = 1024**3
MAX_OFFLOAD_GB = 1e6
"""More than any host has; a larger budget is a slip of the pen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadConfig:
    """vLLM's weight-offload fields, with its defaults and range checks (vllm/config/offload.py)."""

    offload_backend: Literal[
        "auto", "uva", "prefetch", "cpu_offload", "disk_offload", "device_map"
    ] = "auto"
    """Requested backend; `auto` takes prefetch if a group size is set, else UVA if a budget is."""
    cpu_offload_gb: float = 0.0
    """UVA budget in GiB."""
    cpu_offload_params: frozenset[str] = frozenset()
    """UVA selectors: whole dot-segments of parameter names; empty selects every parameter."""
    offload_group_size: int = 0
    """Prefetch: modules per group; 0 is off."""
    offload_num_in_group: int = 1
    """Prefetch: the last this many modules of each group are offloaded."""
    offload_prefetch_step: int = 1
    """Prefetch: slots in the buffer pool, and how far ahead a module is copied."""
    offload_params: frozenset[str] = frozenset()
    """Prefetch selectors: whole dot-segments of parameter names; empty selects every parameter."""
    pin_memory: bool = True
    """False sets VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY=1."""
    uva: bool = True
    """False sets VLLM_WEIGHT_OFFLOADING_DISABLE_UVA=1: copy on forward instead of a view."""
    device_map: Mapping[str, str] = field(default_factory=dict, hash=False)
    """accelerate: module name (`""` is the whole model) -> `cpu`, `disk` or a device."""

    def __post_init__(self) -> None:
        checks = (
            (
                self.cpu_offload_gb >= 0,
                f"cpu_offload_gb={self.cpu_offload_gb!r} must be >= 0 (GiB)",
            ),
            (
                not self.cpu_offload_gb > MAX_OFFLOAD_GB,
                f"cpu_offload_gb={self.cpu_offload_gb!r} must be <= {MAX_OFFLOAD_GB:,.0f} (GiB)",
            ),
            (
                self.offload_group_size >= 0,
                f"offload_group_size={self.offload_group_size!r} must be >= 0",
            ),
            (
                self.offload_num_in_group >= 1,
                f"offload_num_in_group={self.offload_num_in_group!r} must be >= 1",
            ),
            (
                not self.offload_group_size or self.offload_num_in_group <= self.offload_group_size,
                f"offload_num_in_group={self.offload_num_in_group!r} must be <= "
                f"offload_group_size={self.offload_group_size!r}",
            ),
            (
                self.offload_prefetch_step >= (1 if self.offload_group_size else 0),
                f"offload_prefetch_step={self.offload_prefetch_step!r} must be >= 1 "
                "when offload_group_size > 0",
            ),
            (
                self.offload_backend != "prefetch" or self.offload_group_size > 0,
                "offload_backend='prefetch' needs offload_group_size > 0",
            ),
            (
                (self.offload_backend == "device_map") == bool(self.device_map),
                f"offload_backend={self.offload_backend!r} with device_map={dict(self.device_map)}:"
                " offload_backend='device_map' and a device_map go together",
            ),
        )
        for ok, text in checks:
            if not ok:
                raise SettingError(text)

    @property
    def resolved_backend(self) -> Backend:
        """The backend vLLM would choose for these fields."""
        if self.offload_backend != "auto":
            return self.offload_backend
        if self.offload_group_size > 0:
            return "prefetch"
        return "uva" if self.cpu_offload_gb > 0 else "none"

    @property
    def ignored_requests(self) -> tuple[str, ...]:
        """Requests that the chosen backend never looks at, each as `name=value`."""
        backend = self.resolved_backend
        ignored = []
        if backend != "uva" and self.cpu_offload_gb > 0:
            ignored.append(f"cpu_offload_gb={self.cpu_offload_gb:g}")
        if backend != "uva" and self.cpu_offload_params:
            ignored.append(f"cpu_offload_params={'+'.join(sorted(self.cpu_offload_params))}")
        if backend != "prefetch" and self.offload_group_size > 0:
            ignored.append(f"offload_group_size={self.offload_group_size}")
        if backend != "prefetch" and self.offload_params:
            ignored.append(f"offload_params={'+'.join(sorted(self.offload_params))}")
        return tuple(ignored)

    @property
    def is_none(self) -> bool:
        """True when nothing at all is asked for."""
        return self.resolved_backend == "none" and not self.ignored_requests

    @property
    def offload_id(self) -> str:
        """Readable id: `none`, `uva-gb1-pin1`, `prefetch-g8n2s1-pin0`, with `-sel.a+b`, `-uva0`."""
        backend = self.resolved_backend
        if backend == "none":
            base = "none"
        elif backend == "device_map":
            places = sorted(self.device_map.items())
            base = "map-" + "+".join(f"{name or 'all'}.{place}" for name, place in places)
        elif backend in ACCELERATE_BACKENDS:
            base = backend
        elif backend == "uva":
            base = f"uva-gb{self.cpu_offload_gb:g}" + _selectors(self.cpu_offload_params)
            base += "" if self.uva else "-uva0"
        else:
            group, num = self.offload_group_size, self.offload_num_in_group
            base = f"prefetch-g{group}n{num}s{self.offload_prefetch_step}"
            base += _selectors(self.offload_params) + ("" if self.uva else "-uva0")
        for request in self.ignored_requests:
            base += "-also." + request.replace("=", ".")
        has_pin = backend in ("uva", "prefetch")
        return f"{base}-pin{int(self.pin_memory)}" if has_pin else base


_NOT_ARGUMENTS = ("pin_memory", "uva", "device_map")
"""Fields that vLLM reads from its environment, or not at all."""


def _selectors(params: frozenset[str]) -> str:
    return "-sel." + "+".join(sorted(params)) if params else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one side asks for. Made once, never changed; what is learned stands beside it."""

    engine: str = "reference"
    """Name in the engine registry."""
    runner: Runner | None = None
    """Model runner version; None leaves the choice to the engine."""
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    enforce_eager: bool = True
    """False asks for recorded graphs."""
    multiprocessing: bool = False
    """True runs the engine core in its own process (VLLM_ENABLE_V1_MULTIPROCESSING=1)."""
    server: bool = False
    """True asks the engine's OpenAI server over HTTP; its core is a process of its own."""
    engine_args: Mapping[str, Json] = field(default_factory=dict)
    """Further engine arguments by vLLM's keyword names, passed on verbatim."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Further environment variables of the child; None unsets."""
    python: str | None = None
    """Interpreter to run the engine under; None is the harness's own."""
    release: str = ""
    """Label of the engine's release, e.g. `0.28.0`; says which interpreter, decides nothing."""
    faults: tuple[str, ...] = ()
    """Names of faults to plant (see harness/faults)."""
    instruments: tuple[str, ...] = ()
    """Recorders inside the engine, of `INSTRUMENTS`."""

    def __post_init__(self) -> None:
        for name in OWNED_ENV:
            if name in self.env:
                raise SettingError(f"env {name} is decided by the setting's own field; remove it")
        for name in ("PYTHONPATH", *(["VLLM_PLUGINS"] if self.engine in VLLM else [])):
            if name in self.env:
                raise SettingError(
                    f"env {name} would shut the harness out of the engine; remove it"
                )
        for name in self.instruments:
            if name not in INSTRUMENTS:
                known = ", ".join(INSTRUMENTS)
                raise SettingError(f"instruments={name!r} must be one of {known}")
            is_simulated = self.engine == "reference" and self.engine_args.get("device") != "cuda"
            if name in DELAYS and is_simulated:
                raise SettingError(
                    f"instruments={name!r} needs device='cuda' in engine_args: "
                    f"use schedule={DELAYS[name]} instead"
                )
        if self.engine == "reference":
            _refuse_unread_env(self.env)
        for name in ("enforce_eager", *OffloadConfig.__dataclass_fields__):
            if name in self.engine_args:
                raise SettingError(f"engine argument {name!r} has a field of its own in Setting")

    @property
    def setting_id(self) -> str:
        """Readable id, e.g. `v2-prefetch-g8n2s1-pin0-eager`; also pytest id, row and anchor."""
        parts = [self.runner or "vX", self.offload.offload_id]
        parts.append("eager" if self.enforce_eager else "graph")
        if self.server:
            parts.append("server")
        elif self.multiprocessing:
            parts.append("mp")
        spread, args = name_spread(self.engine_args)
        parts += spread
        if args or self.env or (self.python and not self.release):
            rest = (self.engine, args, dict(self.env), self.python)
            parts.append("x" + hashlib.sha256(canonical_json(rest).encode()).hexdigest()[:6])
        usual = DEFAULT_INSTRUMENTS.get(self.engine, ())
        if self.instruments and sorted(self.instruments) != sorted(usual):
            parts.append("with." + "+".join(sorted(self.instruments)))
        place = "" if self.engine == "reference" else f"@{self.engine}"
        place += f"-{self.release}" if self.release else ""
        return "-".join(parts) + place + "".join(f"!{name}" for name in self.faults)

    @property
    def place(self) -> str:
        """Engine and release, which have guards of their own: `vllm 0.28.0`, `reference`."""
        return f"{self.engine} {self.release or self.python or ''}".strip()

    @property
    def is_baseline(self) -> bool:
        """True when no offload and no fault is asked for."""
        return self.offload.is_none and not self.faults

    def compute_hash(self) -> str:
        """16 hex digits over every field."""
        return hashlib.sha256(canonical_json(self).encode()).hexdigest()[:16]

    def baseline(self) -> Setting:
        """The same setting without offload and without faults."""
        return replace(self, offload=OffloadConfig(), faults=())

    def engine_kwargs(self) -> dict[str, Json]:
        """Keyword arguments for `LLM(model, **kwargs)`; only those that were asked for."""
        kwargs: dict[str, Json] = {**self.engine_args, "enforce_eager": self.enforce_eager}
        default = OffloadConfig()
        for name in OffloadConfig.__dataclass_fields__:
            value = getattr(self.offload, name)
            if name not in _NOT_ARGUMENTS and value != getattr(default, name):
                kwargs[name] = sorted(value) if isinstance(value, frozenset) else value
        return kwargs

    def engine_env(self) -> dict[str, str | None]:
        """The variables this setting decides; None means the variable must be absent."""
        runner = None if self.runner is None else ("1" if self.runner == "v2" else "0")
        return {
            **self.env,
            ENV_RUNNER: runner,
            ENV_MULTIPROCESSING: "1" if self.multiprocessing or self.server else "0",
            ENV_DISABLE_PIN: None if self.offload.pin_memory else "1",
            ENV_DISABLE_UVA: None if self.offload.uva else "1",
        }

    def differing_axes(self, other: Setting) -> tuple[str, ...]:
        """Names of the fields in which two settings differ."""
        return tuple(f for f in self.__dataclass_fields__ if getattr(self, f) != getattr(other, f))


def _refuse_unread_env(env: Mapping[str, str | None]) -> None:
    """A VLLM_ variable that the reference engine never reads would be dropped without a word."""
    for name in env:
        if name.startswith("VLLM_"):
            near = difflib.get_close_matches(name, OWNED_ENV, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(OWNED_ENV)}."
            raise SettingError(f"env {name} is not read by engine 'reference'. {hint}")
