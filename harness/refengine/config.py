"""What the engine is told: every engine argument, with its default, its range and its refusals.

Unknown arguments are refused with the nearest known name; nothing is dropped in silence.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

GIB = 1024**3
DTYPES = ("float32", "bfloat16", "float16")
PINNED_GRANULARITIES = ("exact", "power_of_two")
SCHEDULES = ("in_order", "seeded", "copy_late", "compute_late")


class ConfigError(ValueError):
    """An engine argument is unknown, out of range, or contradicts another."""


class UnsupportedSettingError(ConfigError, NotImplementedError):
    """The setting is meaningful, but this engine does not implement it."""


def check(ok: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless `ok`."""
    if not ok:
        raise ConfigError(message)


def check_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse the first name that is not known, with the nearest known one.

    Raises:
        ConfigError: a name is unknown.
    """
    allowed = sorted(known)
    for name in names:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"Unknown {what} {name!r}. Known: {', '.join(allowed)}.{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadConfig:
    """vLLM's weight-offload fields, with its defaults and range checks."""

    offload_backend: Literal["auto", "uva", "prefetch"] = "auto"
    """`auto` takes prefetch if a group size is set, else UVA if a budget is."""
    cpu_offload_gb: float = 0.0
    """UVA budget in GiB."""
    cpu_offload_params: frozenset[str] = frozenset()
    """UVA selectors: whole dot-segments of parameter names; empty selects every parameter."""
    offload_group_size: int = 0
    """Prefetch: modules per group; 0 is off."""
    offload_num_in_group: int = 1
    """Prefetch: the last this many modules of each group are offloaded."""
    offload_prefetch_step: int = 1
    """Prefetch: slots of the buffer pool, and how far ahead a module is copied."""
    offload_params: frozenset[str] = frozenset()
    """Prefetch selectors, as `cpu_offload_params`."""

    def __post_init__(self) -> None:
        group, num = self.offload_group_size, self.offload_num_in_group
        check(
            self.offload_backend in ("auto", "uva", "prefetch"),
            f"offload_backend={self.offload_backend!r} must be one of auto, uva, prefetch",
        )
        check(
            0 <= self.cpu_offload_gb < float("inf"),
            f"cpu_offload_gb={self.cpu_offload_gb!r} must be a finite number >= 0 (GiB)",
        )
        check(group >= 0, f"offload_group_size={group!r} must be >= 0")
        check(num >= 1, f"offload_num_in_group={num!r} must be >= 1")
        check(
            group == 0 or num <= group,
            f"offload_num_in_group={num!r} must be <= offload_group_size={group!r}",
        )
        check(
            self.offload_prefetch_step >= (1 if group else 0),
            f"offload_prefetch_step={self.offload_prefetch_step!r} must be >= 1 "
            "when offload_group_size > 0",
        )
        check(
            self.offload_backend != "prefetch" or group > 0,
            "offload_backend='prefetch' needs offload_group_size > 0",
        )

    @property
    def resolved_backend(self) -> Literal["none", "uva", "prefetch"]:
        """The backend these fields choose."""
        if self.offload_backend != "auto":
            return self.offload_backend
        if self.offload_group_size > 0:
            return "prefetch"
        return "uva" if self.cpu_offload_gb > 0 else "none"

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each request that the chosen backend never looks at."""
        backend, lines = self.resolved_backend, []
        if backend != "uva" and self.cpu_offload_gb > 0:
            lines.append(f"cpu_offload_gb={self.cpu_offload_gb:g} is ignored")
        if backend != "uva" and self.cpu_offload_params:
            lines.append(f"cpu_offload_params={sorted(self.cpu_offload_params)} is ignored")
        if backend != "prefetch" and self.offload_group_size > 0:
            lines.append(f"offload_group_size={self.offload_group_size} is ignored")
        if backend != "prefetch" and self.offload_params:
            lines.append(f"offload_params={sorted(self.offload_params)} is ignored")
        return tuple(f"{line}: the offload backend in effect is {backend}" for line in lines)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Every engine argument; build it with `from_args`, which refuses unknown names."""

    model: str
    """Folder with config.json and, unless `load_format` is `dummy`, *.safetensors."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int | None = None
    """Prompt plus output tokens of one request; None takes max_position_embeddings."""
    max_num_seqs: int = 16
    """Requests in one batch."""
    max_num_batched_tokens: int = 2048
    """Tokens of one step; longer prompts are computed in chunks."""
    block_size: int = 16
    """Tokens of one KV block."""
    kv_cache_memory_bytes: int | None = None
    """Device bytes for the KV cache; None sizes it from the other fields."""
    pipeline_parallel_size: int = 1
    """Stages that the layers are spread over: a worker with a device of its own each."""
    enforce_eager: bool = True
    """False records a graph of each batch size's decode step, and replays it."""
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    """`dummy` fills the weights at random from `seed`."""
    seed: int = 0
    """Of dummy weights, and of sampled requests without a seed of their own."""
    device: Literal["simulated", "cuda"] = "simulated"
    device_memory_bytes: int | None = None
    """Capacity of the device; None does not limit it."""
    unified_memory: bool = False
    """Simulated: pinned host bytes, and host bytes the device views, count against its capacity."""
    pinned_granularity: Literal["exact", "power_of_two"] = "exact"
    """Simulated: what each pinned allocation is rounded up to."""
    schedule: Literal["in_order", "seeded", "copy_late", "compute_late"] = "in_order"
    """Order in which the simulated device takes work from its streams."""
    schedule_seed: int = 0
    num_threads: int | None = None
    """torch CPU threads; None leaves them as they are."""
    worker_extension_cls: str = ""
    """`module.Class` mixed into the Worker; its methods are reached by `collective_rpc`."""
    offload: OffloadConfig = field(default_factory=OffloadConfig)

    def __post_init__(self) -> None:
        check_choice(self.dtype, ("auto", *DTYPES), "dtype")
        check_choice(self.load_format, ("auto", "safetensors", "dummy"), "load_format")
        check_choice(self.device, ("simulated", "cuda"), "device")
        check_choice(self.schedule, SCHEDULES, "schedule")
        check_choice(self.pinned_granularity, PINNED_GRANULARITIES, "pinned_granularity")
        check(
            isinstance(self.unified_memory, bool),
            f"unified_memory={self.unified_memory!r} must be True or False",
        )
        check(
            self.device == "simulated"
            or (not self.unified_memory and self.pinned_granularity == "exact"),
            f"unified_memory={self.unified_memory!r} and pinned_granularity="
            f"{self.pinned_granularity!r} can be chosen on device='simulated' only",
        )
        sizes = ("max_num_seqs", "max_num_batched_tokens", "block_size", "pipeline_parallel_size")
        for name in sizes:
            check_positive(getattr(self, name), name)
        for name in ("max_model_len", "kv_cache_memory_bytes", "device_memory_bytes"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)
        check(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens={self.max_num_batched_tokens!r} must be >= "
            f"max_num_seqs={self.max_num_seqs!r}: every running request needs one token a step",
        )
        if not self.enforce_eager and self.device != "simulated":
            raise UnsupportedSettingError(
                f"enforce_eager=False is not supported with device={self.device!r}: graphs are "
                "recorded on device='simulated' only; use enforce_eager=True"
            )
        if not self.enforce_eager and self.pipeline_parallel_size > 1:
            raise UnsupportedSettingError(
                "enforce_eager=False is not supported with "
                f"pipeline_parallel_size={self.pipeline_parallel_size!r}: graphs are recorded of a "
                "whole model only; use enforce_eager=True"
            )

    @classmethod
    def from_args(cls, model: str, **engine_args: Any) -> EngineConfig:
        """Build from `LLM`'s keyword arguments, offload fields flat among them.

        Raises:
            ConfigError: an argument is unknown or out of range.
            UnsupportedSettingError: an argument asks for what this engine does not implement.
        """
        own = {f.name for f in fields(cls)} - {"offload", "model"}
        offload = {f.name for f in fields(OffloadConfig)}
        check_known(engine_args, own | offload, "engine argument")
        offload_args = {k: v for k, v in engine_args.items() if k in offload}
        for name in ("cpu_offload_params", "offload_params"):
            if name in offload_args:
                offload_args[name] = as_selectors(offload_args[name], name)
        rest = {k: v for k, v in engine_args.items() if k in own}
        return cls(model=str(model), offload=OffloadConfig(**offload_args), **rest).resolve()

    def resolve(self) -> EngineConfig:
        """Fill what depends on the checkpoint: dtype and `max_model_len`."""
        dtype, limit = self.dtype, int(self.hf_config.get("max_position_embeddings", 2048))
        if dtype == "auto":
            dtype = self.hf_config.get("dtype") or self.hf_config.get("torch_dtype") or "float32"
            check_choice(dtype, DTYPES, f"dtype of {self.model}/config.json")
        length = self.max_model_len or limit
        check(length >= 4, f"max_model_len={length!r} must be >= 4")
        check(
            length <= limit,
            f"max_model_len={length!r} must be <= max_position_embeddings={limit!r} of the model",
        )
        stages, layers = self.pipeline_parallel_size, int(self.hf_config["num_hidden_layers"])
        check(
            stages <= layers,
            f"pipeline_parallel_size={stages!r} must be <= num_hidden_layers={layers!r} of the "
            "model: each stage needs a layer",
        )
        return replace(self, dtype=dtype, max_model_len=length)

    @cached_property
    def hf_config(self) -> Mapping[str, Any]:
        """Content of the checkpoint's config.json."""
        path = Path(self.model) / "config.json"
        check(path.is_file(), f"model={self.model!r} has no config.json: give a checkpoint folder")
        config: Mapping[str, Any] = json.loads(path.read_text())
        return config

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """End-of-sequence tokens, from generation_config.json, else config.json."""
        path = Path(self.model) / "generation_config.json"
        generation = json.loads(path.read_text()) if path.is_file() else {}
        value = generation.get("eos_token_id", self.hf_config.get("eos_token_id"))
        if value is None:
            return frozenset()
        return frozenset(value if isinstance(value, list) else [value])

    @property
    def model_len(self) -> int:
        """`max_model_len` once resolved, in tokens."""
        assert self.max_model_len is not None, "resolve() first"
        return self.max_model_len

    @property
    def warnings(self) -> list[str]:
        """What was asked for and will not be done, one line each."""
        return list(self.offload.warnings)


def check_choice(value: Any, allowed: tuple[str, ...], name: str) -> None:
    """Refuse a value that is not among `allowed`."""
    check(value in allowed, f"{name}={value!r} must be one of {', '.join(allowed)}")


def check_positive(value: Any, name: str) -> None:
    """Refuse anything but an int >= 1."""
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    check(ok, f"{name}={value!r} must be an integer >= 1")


def as_selectors(value: Any, name: str) -> frozenset[str]:
    """Selectors from any iterable of strings; a bare string is refused as ambiguous."""
    ok = not isinstance(value, str) and all(isinstance(item, str) and item for item in value)
    check(ok, f"{name}={value!r} must be a list or set of non-empty strings")
    return frozenset(value)
