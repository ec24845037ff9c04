"""The engine flags this package knows by vLLM's names: what type each takes, and its error texts.

Knows nothing of settings: it turns one flag's text values into one Python value.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core import Json, UsageError
from harness.core.engine_names import VLLM
from harness.core.setting import ACCELERATE_BACKENDS

Kind = Literal["int", "float", "bool", "str", "list", "map"]

PASSES_UNKNOWN_ON = frozenset({*VLLM, "accelerate"})
"""Engines that judge their own arguments: what this package does not know goes to them as it is."""
GRAPHS_BY_DEFAULT = frozenset(VLLM)
"""Engines that record graphs unless `--enforce-eager` is given."""

SUFFIXES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag: `--a-b` sets keyword `a_b`."""

    kind: Kind
    choices: tuple[str, ...] = ()
    """Allowed values; empty allows any."""
    is_offload: bool = False
    """The keyword is a field of OffloadConfig."""
    refusal: str = ""
    """Why the reference engine has no such flag, and what to give instead."""


OFFLOAD_FLAGS = {
    "offload_backend": Flag(
        kind="str", choices=("auto", "uva", "prefetch", *ACCELERATE_BACKENDS), is_offload=True
    ),
    "cpu_offload_gb": Flag(kind="float", is_offload=True),
    "cpu_offload_params": Flag(kind="list", is_offload=True),
    "offload_group_size": Flag(kind="int", is_offload=True),
    "offload_num_in_group": Flag(kind="int", is_offload=True),
    "offload_prefetch_step": Flag(kind="int", is_offload=True),
    "offload_params": Flag(kind="list", is_offload=True),
    "device_map": Flag(kind="map", is_offload=True),
}

ENGINE_FLAGS = {
    "dtype": Flag(kind="str", choices=("auto", "float32", "bfloat16", "float16")),
    "max_model_len": Flag(kind="int"),
    "max_num_seqs": Flag(kind="int"),
    "max_num_batched_tokens": Flag(kind="int"),
    "pipeline_parallel_size": Flag(kind="int"),
    "load_format": Flag(kind="str", choices=("auto", "safetensors", "dummy")),
    "seed": Flag(kind="int"),
    "device": Flag(kind="str", choices=("simulated", "cuda")),
    "device_memory_bytes": Flag(kind="int"),
    "unified_memory": Flag(kind="bool"),
    "pinned_granularity": Flag(kind="str", choices=("exact", "power_of_two")),
    "kv_cache_memory_bytes": Flag(kind="int"),
    "block_size": Flag(kind="int"),
    "schedule": Flag(kind="str", choices=("in_order", "seeded", "copy_late", "compute_late")),
    "schedule_seed": Flag(kind="int"),
    "gpu_memory_utilization": Flag(
        kind="float",
        refusal="the reference engine never sizes itself by a share of the device; "
        "give --kv-cache-memory-bytes or --device-memory-bytes",
    ),
}

FLAGS = {**OFFLOAD_FLAGS, "enforce_eager": Flag(kind="bool"), **ENGINE_FLAGS}
"""Keyword name -> flag: of offload (accelerate's included), and of the reference engine."""


def flag_name(keyword: str) -> str:
    """`cpu_offload_gb` -> `--cpu-offload-gb`."""
    return "--" + keyword.replace("_", "-")


def unknown_flag(keyword: str, *, engine: str) -> UsageError:
    """The error for a keyword that `engine` does not have, with the nearest one it has."""
    known = [name for name, flag in FLAGS.items() if not flag.refusal]
    near = difflib.get_close_matches(keyword.removeprefix("no_"), known, n=1)
    hint = f"Did you mean {flag_name(near[0])}?" if near else f"Known: {', '.join(known)}."
    return UsageError(f"Unknown flag {flag_name(keyword)} for engine {engine!r}. {hint}")


def read_value(keyword: str, values: Sequence[str], *, any_choice: bool = False) -> Json:
    """Turn the text values of a known flag into its Python value.

    Args:
        keyword: a key of `FLAGS`.
        values: the texts that followed the flag.
        any_choice: leaves the check of allowed values to the engine.

    Raises:
        UsageError: too few, too many or unreadable values.
    """
    flag = FLAGS[keyword]
    if flag.kind == "list":
        return _read_list(keyword, values)
    if flag.kind == "map":
        return _read_map(keyword, values)
    if flag.kind == "bool":
        if values:
            raise UsageError(
                f"{flag_name(keyword)} takes no value, found {values[0]!r}; "
                f"its opposite is {flag_name('no_' + keyword)}"
            )
        return True
    if len(values) != 1:
        found = "none" if not values else f"{len(values)}: {' '.join(values)}"
        raise UsageError(f"{flag_name(keyword)} takes one value, found {found}")
    (text,) = values
    if flag.choices and not any_choice and text not in flag.choices:
        raise UsageError(f"{flag_name(keyword)}={text!r} must be one of {', '.join(flag.choices)}")
    return text if flag.kind == "str" else _read_number(keyword, text, flag.kind)


def read_literal(values: Sequence[str]) -> Json:
    """Turn the values of a flag only the engine knows into JSON data; no value is True."""
    if not values:
        return True
    items = [_literal(text) for text in values]
    return items[0] if len(items) == 1 else items


def _literal(text: str) -> Json:
    def refuse(constant: str) -> Json:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError:
        return text


def _read_list(keyword: str, values: Sequence[str]) -> list[str]:
    items = [part.strip() for text in values for part in text.split(",")]
    if not items or "" in items:
        raise UsageError(
            f"{flag_name(keyword)} needs names separated by spaces or commas, "
            f"found {' '.join(values)!r}"
        )
    return items


def _read_map(keyword: str, values: Sequence[str]) -> dict[str, str]:
    found = _literal(" ".join(values))
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise UsageError(
            f"{flag_name(keyword)}={' '.join(values)!r} must be a JSON object of texts, "
            """for example '{"": "cpu"}'"""
        )
    return found


def _read_number(keyword: str, text: str, kind: Kind) -> int | float:
    factor = SUFFIXES.get(text[-1:], 0) if kind == "int" else 0
    try:
        if kind == "int":
            return int(text[:-1]) * factor if factor else int(text)
        number = float(text)
    except ValueError:
        wanted = "a whole number" if kind == "int" else "a number"
        raise UsageError(f"{flag_name(keyword)}={text!r} must be {wanted}") from None
    if not math.isfinite(number):
        raise UsageError(f"{flag_name(keyword)}={text!r} must be a finite number")
    return number
