"""Named workloads -> prompts as token ids for one model; the same ids in every process.

Text prompts come from the checkpoint's prompts.json (made by tools/train_tiny_llama.py), so no
tokenizer is needed; a model without one gets seeded random ids.
"""

from __future__ import annotations

import difflib
import json
import random
from dataclasses import dataclass
from pathlib import Path

from harness.core import (
    Json,
    ModelNotFoundError,
    ModelSpec,
    SamplingParams,
    Step,
    UsageError,
    Workload,
)

from .lifecycles import LIFECYCLES, lifecycle_steps
from .models import ensure_changed

PROMPTS_FILE = "prompts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    lengths: tuple[int, ...]
    """Token ids of each prompt."""
    max_tokens: int
    """New tokens of each answer."""


_SHAPES = {
    "default": _Shape(lengths=(6, 12, 24, 48, 96, 144, 200, 256), max_tokens=64),
    "short": _Shape(lengths=(10, 32), max_tokens=8),
    "oracle": _Shape(lengths=(1, 2, 7, 16, 33, 64, 129, 256), max_tokens=64),
}

WORKLOADS = (*_SHAPES, *LIFECYCLES)
"""Names that `load_workload` knows."""


def load_workload(name: str, model: ModelSpec) -> Workload:
    """The workload called `name` for `model`: greedy, 5 top log-probabilities kept.

    Args:
        name: `default` (8 prompts of 6 to 256 token ids, 64 new tokens), `short` (2 prompts,
            8 new tokens) or `oracle` (8 prompts of 1 to 256 token ids, 64 new tokens).
        model: whose vocabulary the ids are of. A prompt is cut where it and its answer would
            exceed the model's `max_position_embeddings`.

    Raises:
        UsageError: there is no such workload, or the model has no room for its answers.
        ModelNotFoundError: the checkpoint's prompts.json is damaged.
    """
    shape = _SHAPES.get("short" if name in LIFECYCLES else name)
    if shape is None:
        near = difflib.get_close_matches(name, WORKLOADS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"Unknown workload {name!r}. Known: {', '.join(WORKLOADS)}.{hint}")
    room = int(model.config.get("max_position_embeddings", 2**31)) - shape.max_tokens
    if room < 1:
        raise UsageError(
            f"workload {name!r} asks for {shape.max_tokens} new tokens, but model {model.name!r} "
            f"has max_position_embeddings={model.config['max_position_embeddings']}"
        )
    asked = "short" if name in LIFECYCLES else name
    prompts = _read_prompts(asked, model) or _make_prompts(asked, model)
    steps = lifecycle_steps(name, model, ensure_changed) if name in LIFECYCLES else (Step(),)
    return Workload(
        name=name,
        model=model,
        prompt_token_ids=tuple(ids[:room] for ids in prompts),
        sampling_params=SamplingParams(max_tokens=shape.max_tokens, temperature=0.0, logprobs=5),
        steps=steps,
    )


def _read_prompts(name: str, model: ModelSpec) -> tuple[tuple[int, ...], ...]:
    """The checkpoint's own prompts; empty when it has none."""
    file = Path(model.path) / PROMPTS_FILE
    if not file.is_file():
        return ()
    try:
        prompts = json.loads(file.read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelNotFoundError(f"{file}: no prompts for workload {name!r}: {error!r}") from None
    lengths = _SHAPES[name].lengths
    right = isinstance(prompts, list) and len(prompts) == len(lengths)
    if not right or not all(_is_prompt(ids, model.vocab_size) for ids in prompts):
        raise ModelNotFoundError(
            f"{file}: workload {name!r} must be {len(lengths)} lists of token ids "
            f"from 0 to {model.vocab_size - 1}"
        )
    return tuple(tuple(ids) for ids in prompts)


def _is_prompt(ids: Json, vocab_size: int) -> bool:
    return (
        isinstance(ids, list)
        and bool(ids)
        and all(type(token) is int and 0 <= token < vocab_size for token in ids)
    )


def _make_prompts(name: str, model: ModelSpec) -> tuple[tuple[int, ...], ...]:
    """Seeded ids over the whole vocabulary, but for the tokens that begin and end a text."""
    special = _special_tokens(model)
    words = [token for token in range(model.vocab_size) if token not in special]
    rng = random.Random(f"{name}/{model.vocab_size}")
    # random() repeats across Python versions; choice() need not
    return tuple(
        tuple(words[int(rng.random() * len(words))] for _ in range(length))
        for length in _SHAPES[name].lengths
    )


def _special_tokens(model: ModelSpec) -> set[Json]:
    special: set[Json] = set()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = model.config.get(key)
        special |= set(value if isinstance(value, list) else [value])
    return special
