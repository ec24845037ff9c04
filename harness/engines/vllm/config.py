"""vLLM's live configuration, told by the names that its arguments have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import torch

from harness.core import Json

PARTS = (
    "model_config",
    "cache_config",
    "parallel_config",
    "scheduler_config",
    "load_config",
    "offload_config",
)
"""Parts of `VllmConfig` whose fields are arguments of the same name."""
WHOLE = ("compilation_config",)
"""Parts that are one argument each: a mapping."""
WHOLE_WHERE_THERE = ("attention_config", "kernel_config", "structured_outputs_config")
"""The same; older releases lack some."""
ELSEWHERE = {
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "model_loader_extra_config": ("load_config", "model_loader_extra_config"),
    "hf_overrides": ("model_config", "hf_overrides"),
    "eplb_config": ("parallel_config", "eplb_config"),
    "cudagraph_capture_sizes": ("compilation_config", "cudagraph_capture_sizes"),
    "max_cudagraph_capture_size": ("compilation_config", "max_cudagraph_capture_size"),
    "attention_backend": ("attention_config", "backend"),
    "moe_backend": ("kernel_config", "moe_backend"),
    "linear_backend": ("kernel_config", "linear_backend"),
    "enable_flashinfer_autotune": ("kernel_config", "enable_flashinfer_autotune"),
    "reasoning_parser": ("structured_outputs_config", "reasoning_parser"),
}
"""Argument -> the part and the field where it lives, where these have other names."""
MOOT_IN_EAGER = (
    "mode",
    "cudagraph_mode",
    "cudagraph_capture_sizes",
    "max_cudagraph_capture_size",
)
"""What eager mode sets aside: nothing is compiled or recorded, whatever was asked for."""

_NO_JSON = object()


def effective_config(config: Any, read: Callable[[Any, str], Any]) -> dict[str, Json]:
    """Every argument that the live configuration tells of.

    The first of equal names wins, fields of the parts themselves before those deeper down.

    Args:
        config: the worker's `VllmConfig`.
        read: gets an attribute, or raises `InternalMovedError`.
    """
    flat: dict[str, Json] = {}
    level = [read(config, name) for name in PARTS]
    while level:
        level = [below for part in level for below in _take(part, flat)]
    moot = MOOT_IN_EAGER if flat.get("enforce_eager") else ()
    for name in WHOLE:
        told = _nested(read(config, name))
        flat[name] = {key: value for key, value in told.items() if key not in moot}
    for name in WHOLE_WHERE_THERE:
        if is_dataclass(part := getattr(config, name, None)):
            flat[name] = _nested(part)
    for name, (part_name, field) in ELSEWHERE.items():
        value = _json(getattr(getattr(config, part_name, None), field, _NO_JSON))
        if value is not _NO_JSON and name not in moot:
            flat[name] = value
    return flat


def _take(part: Any, flat: dict[str, Json]) -> list[Any]:
    """Enter what a part says itself; return the parts below it."""
    below = []
    for field in fields(part) if is_dataclass(part) else ():
        value = getattr(part, field.name, None)
        if is_dataclass(value):
            below.append(value)
        elif (plain := _json(value)) is not _NO_JSON and not isinstance(plain, Mapping):
            flat.setdefault(field.name, plain)
    return below


def _nested(part: Any) -> dict[str, Json]:
    """A part as a mapping, parts below it as mappings within."""
    told = {f.name: _json(getattr(part, f.name, None)) for f in fields(part)}
    return {name: value for name, value in told.items() if value is not _NO_JSON}


def _json(value: Any) -> Any:
    """The same as JSON data, an enumeration's member by its name; `_NO_JSON` where it has none."""
    if isinstance(value, Enum):
        value = value.value if isinstance(value, str | int) else value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if is_dataclass(value) and not isinstance(value, type):
        return _nested(value)
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        items = [_json(item) for item in value]
        return _NO_JSON if _NO_JSON in items else items
    if type(value) is dict:
        pairs = {str(name): _json(item) for name, item in value.items()}
        return _NO_JSON if _NO_JSON in pairs.values() else pairs
    return _NO_JSON
