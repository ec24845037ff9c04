"""How vLLM spreads a model over workers: which rows, columns and layers each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.core import ModelSpec, Setting, SettingError
from harness.core.engine_names import VLLM

from .shapes import TOWER_PREFIX

if TYPE_CHECKING:
    from .shapes import ParamShape

ENV_PARTITION = "VLLM_PP_LAYER_PARTITION"
VOCAB_MULTIPLE = 64
"""Rows of embeddings are padded to a multiple of this before they are split."""
_BY_ROWS = ("gate_up_proj",)
_BY_COLUMNS = ("o_proj", "down_proj")
_VOCAB = ("model.embed_tokens.weight", "lm_head.weight")


def count_ranks(setting: Setting) -> int:
    """Workers that a setting asks for: tensor times pipeline parallel."""
    return _size(setting, "tensor_parallel_size") * _size(setting, "pipeline_parallel_size")


def of_rank(
    params: Sequence[ParamShape], model: ModelSpec, setting: Setting, rank: int
) -> tuple[ParamShape, ...]:
    """What one rank holds of a model's parameters, with their shapes there.

    Args:
        params: of the whole model.
        model: for its number of layers and heads.
        setting: `tensor_parallel_size` and `pipeline_parallel_size` in its engine arguments,
            `VLLM_PP_LAYER_PARTITION` in its variables.
        rank: of the worker; tensor parallel ranks of one pipeline stage are neighbours.

    Raises:
        SettingError: heads or rows cannot be split into equal parts, or the partition of layers
            does not fit.
    """
    num_tensor = _size(setting, "tensor_parallel_size")
    num_stages = _size(setting, "pipeline_parallel_size")
    if num_tensor > 1 and model.architecture == "Lfm2ForCausalLM":
        raise SettingError(
            f"tensor_parallel_size={num_tensor} of model {model.name!r}: there is no placement "
            "arithmetic for parts of a convolution"
        )
    stage = rank // num_tensor
    sizes = _given_sizes(model, setting, num_stages)
    layers = stage_layers(model.num_layers, stage, num_stages, sizes)
    held = [p for p in params if _stage_holds(p, model, stage, num_stages, layers)]
    return tuple(_split(param, model, num_tensor) for param in held)


def stage_layers(num_layers: int, stage: int, num_stages: int, given: Sequence[int] = ()) -> range:
    """Decoder layers of one pipeline stage; what does not divide goes to the middle stages.

    Args:
        num_layers: of the whole model.
        stage: which one.
        num_stages: how many there are.
        given: layers of each stage; empty leaves them to vLLM.
    """
    sizes = list(given) or [num_layers // num_stages] * num_stages
    for back in range(2, num_layers % num_stages + 2) if not given else ():
        sizes[-back] += 1
    start = sum(sizes[:stage])
    return range(start, start + sizes[stage])


def _given_sizes(model: ModelSpec, setting: Setting, num_stages: int) -> list[int]:
    """Layers of each stage as `VLLM_PP_LAYER_PARTITION` has them; empty where it is not given."""
    text = setting.env.get(ENV_PARTITION)
    if text is None or setting.engine not in VLLM:
        return []
    words = [word.strip() for word in text.split(",")]
    sizes = [int(word) for word in words if word.isascii() and word.isdecimal()]
    given = f"env {ENV_PARTITION}={text!r}"
    if len(sizes) != len(words):
        raise SettingError(f"{given} must be the layers of each stage, for example 3,5")
    if len(sizes) != num_stages:
        raise SettingError(
            f"{given} is of {len(sizes)} stages, pipeline_parallel_size={num_stages}; "
            "give a number for each stage"
        )
    if sum(sizes) != model.num_layers:
        raise SettingError(
            f"{given} is of {sum(sizes)} layers, model {model.name!r} has {model.num_layers}; "
            "the numbers must sum to that"
        )
    return sizes


def _stage_holds(
    param: ParamShape, model: ModelSpec, stage: int, num_stages: int, layers: range
) -> bool:
    if param.layer_idx is not None:
        return param.layer_idx in layers
    if param.name.startswith(TOWER_PREFIX):
        return stage == 0
    is_tied = bool(model.config.get("tie_word_embeddings", False))
    is_last = stage == num_stages - 1
    if param.name == "model.embed_tokens.weight":
        return stage == 0 or (is_tied and is_last)
    return is_last


def _split(param: ParamShape, model: ModelSpec, num_parts: int) -> ParamShape:
    if num_parts == 1 or len(param.shape) != 2:
        return param
    if param.name.endswith("weight_packed"):
        raise SettingError(
            f"tensor_parallel_size={num_parts}: packed weights of model {model.name!r} have no "
            "placement arithmetic in parts"
        )
    rows, columns = param.shape
    segment = param.relative_name.split(".")[-2]
    if param.name in _VOCAB:
        padded = -(-rows // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        return replace(param, shape=(_part(param, padded, num_parts), columns))
    if segment == "qkv_proj":
        return replace(param, shape=(_qkv_rows(param, model, num_parts), columns))
    if segment in _BY_ROWS:
        return replace(param, shape=(_part(param, rows, num_parts), columns))
    if segment in _BY_COLUMNS:
        return replace(param, shape=(rows, _part(param, columns, num_parts)))
    return param


def _qkv_rows(param: ParamShape, model: ModelSpec, num_parts: int) -> int:
    """Rows of one part: its heads of queries, and of keys and values at least one head each."""
    heads = int(model.config["num_attention_heads"])
    kv_heads = int(model.config.get("num_key_value_heads") or heads)
    head_dim = param.shape[0] // (heads + 2 * kv_heads)
    kv_part = kv_heads // num_parts if kv_heads % num_parts == 0 else 0
    if kv_heads < num_parts and num_parts % kv_heads == 0:
        kv_part = 1
    if heads % num_parts or not kv_part:
        raise SettingError(
            f"tensor_parallel_size={num_parts} does not divide {heads} heads and {kv_heads} of "
            f"keys of model {model.name!r}: there is no placement arithmetic for it"
        )
    return (heads // num_parts + 2 * kv_part) * head_dim


def _part(param: ParamShape, whole: int, num_parts: int) -> int:
    if whole % num_parts:
        raise SettingError(
            f"tensor_parallel_size={num_parts} does not divide {whole} of {param.name}: "
            "there is no placement arithmetic for it"
        )
    return whole // num_parts


def _size(setting: Setting, name: str) -> int:
    size = setting.engine_args.get(name, 1)
    return size if isinstance(size, int) and size > 0 else 1
