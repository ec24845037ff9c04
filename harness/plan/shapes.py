"""Every parameter of a model as vLLM names it, fused and in its order, from config.json alone.

Knows no engine, no torch and no checkpoint bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness.core import DTYPE_BYTES, Json, ModelSpec, Setting, SettingError

LFM2 = "Lfm2ForCausalLM"
TOWER = "PromptTowerLlamaForCausalLM"
TOWER_PREFIX = "prompt_tower."
"""Of names in a tower beside the stack."""
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM", LFM2, TOWER)
_DTYPE_NAMES = {"half": "float16", "float": "float32"}


BYTES = {**DTYPE_BYTES, "int32": 4, "int64": 8}
PACKED_FORMAT = "pack-quantized"
"""compressed-tensors' name of the one quantized form that is known here."""
CODES_PER_WORD = 4
FUSED_PARTS = {"qkv_proj": 3, "gate_up_proj": 2}
"""Segment of a fused weight -> how many of a checkpoint's it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamShape:
    """One parameter as the engine names it, fused where the engine fuses."""

    name: str
    """Full dotted name."""
    layer_idx: int | None
    """Decoder layer, None outside the stack."""
    relative_name: str
    """Name within the layer; equals `name` outside the stack."""
    shape: tuple[int, ...]
    dtype: str
    is_transient: bool = False
    """There while weights are loaded, and deleted before anything computes."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * BYTES[self.dtype]


def parameter_shapes(model: ModelSpec, *, dtype: str | None = None) -> tuple[ParamShape, ...]:
    """Every parameter of a model that computes, in the engine's order.

    Args:
        model: needs only its architecture, config and dtype.
        dtype: computes in this dtype instead of the model's own.

    Raises:
        SettingError: the architecture, dtype or quantization is unknown, or a size is missing.
    """
    return tuple(p for p in loaded_shapes(model, dtype=dtype) if not p.is_transient)


def loaded_shapes(
    model: ModelSpec, *, dtype: str | None = None, keeps_shapes: bool = False
) -> tuple[ParamShape, ...]:
    """As `parameter_shapes`, with those among them that only loading needs.

    Args:
        model: see `parameter_shapes`.
        dtype: see `parameter_shapes`.
        keeps_shapes: of packed weights: one shape stays beside the codes, as in vLLM, whose
            kernels also lay the codes out as they like, in as many bytes.
    """
    if model.architecture not in ARCHITECTURES:
        raise SettingError(
            f"architecture={model.architecture!r} of model {model.name!r} has no placement "
            f"arithmetic; known: {', '.join(ARCHITECTURES)}"
        )
    dtype = dtype or model.dtype
    if dtype not in DTYPE_BYTES:
        raise SettingError(f"dtype={dtype!r} must be one of {', '.join(DTYPE_BYTES)}")
    hidden, vocab = model_size(model, "hidden_size"), model_size(model, "vocab_size")
    shapes = list(_tower(model, dtype))
    shapes.append(_outside("model.embed_tokens.weight", (vocab, hidden), dtype))
    for idx, layer in enumerate(_layers(model)):
        shapes += [
            ParamShape(
                name=f"model.layers.{idx}.{name}",
                layer_idx=idx,
                relative_name=name,
                shape=shape,
                dtype=own or dtype,
                is_transient=name.endswith("weight_shape") and not keeps_shapes,
            )
            for whole, dims in layer
            for name, shape, own in _held(model, whole, dims, keeps_shapes)
        ]
    norm = "model.embedding_norm.weight" if model.architecture == LFM2 else "model.norm.weight"
    shapes.append(_outside(norm, (hidden,), dtype))
    if not model.config.get("tie_word_embeddings", False):
        shapes.append(_outside("lm_head.weight", (vocab, hidden), dtype))
    return tuple(shapes)


def _tower(model: ModelSpec, dtype: str) -> Iterator[ParamShape]:
    """The layers of a tower that sees prompts only: made before the decoder, outside its stack."""
    if model.architecture != TOWER:
        return
    hidden, inner = model_size(model, "hidden_size"), model_size(model, "intermediate_size")
    for idx in range(model_size(model, "num_tower_layers")):
        stem = f"{TOWER_PREFIX}layers.{idx}"
        yield _outside(f"{stem}.mlp.gate_up_proj.weight", (2 * inner, hidden), dtype)
        yield _outside(f"{stem}.mlp.down_proj.weight", (hidden, inner), dtype)
        yield _outside(f"{stem}.norm.weight", (hidden,), dtype)


def _outside(name: str, shape: tuple[int, ...], dtype: str) -> ParamShape:
    """A parameter outside the stack."""
    return ParamShape(name=name, layer_idx=None, relative_name=name, shape=shape, dtype=dtype)


def _held(
    model: ModelSpec, name: str, shape: tuple[int, ...], keeps_shapes: bool
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """What holds a weight: itself, or codes and scales; with a dtype where it is not the model's.

    Codes stand transposed, as the embedded engine computes with them.
    """
    if quantization_of(model) is None or not name.endswith("_proj.weight"):
        yield name, shape, ""
        return
    (rows, columns), stem = shape, name.removesuffix("weight")
    parts = 1 if keeps_shapes else FUSED_PARTS.get(name.split(".")[-2], 1)
    yield f"{stem}weight_packed", (columns, rows // CODES_PER_WORD), "int32"
    yield f"{stem}weight_scale", (rows,), ""
    yield f"{stem}weight_shape", (2 * parts,), "int64"


def quantization_of(model: ModelSpec) -> str | None:
    """Format in which a model's checkpoint is quantized; None if it is not.

    Raises:
        SettingError: it is another than `pack-quantized`.
    """
    config = model.config.get("quantization_config")
    if not config:
        return None
    found = config.get("format") or config.get("quant_method")
    if found != PACKED_FORMAT:
        raise SettingError(
            f"quantization {found!r} of model {model.name!r} has no placement arithmetic; "
            f"known: {PACKED_FORMAT}"
        )
    return str(found)


def _layers(model: ModelSpec) -> Iterator[tuple[tuple[str, tuple[int, ...]], ...]]:
    """Names and shapes of each decoder layer in turn."""
    num_layers = model_size(model, "num_hidden_layers")
    if model.architecture != LFM2:
        yield from [tuple(_layer_shapes(model))] * num_layers
        return
    kinds: Json = model.config.get("layer_types") or ()
    if len(kinds) != num_layers or not {*kinds} <= {"conv", "full_attention"}:
        raise SettingError(
            f"layer_types={kinds!r} in the config of model {model.name!r} must be {num_layers} "
            "of conv, full_attention"
        )
    for kind in kinds:
        yield tuple(_lfm2_layer(model, is_conv=kind == "conv"))


def _lfm2_layer(model: ModelSpec, *, is_conv: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one layer of LFM2, in the order the engine walks them."""
    for name in ("conv_bias", "block_auto_adjust_ff_dim"):
        if model.config.get(name):
            raise SettingError(
                f"{name}=True in the config of model {model.name!r} has no placement arithmetic"
            )
    hidden, heads = model_size(model, "hidden_size"), model_size(model, "num_attention_heads")
    kv_heads = model_size(model, "num_key_value_heads", heads)
    head_dim = model_size(model, "head_dim", hidden // heads)
    intermediate = model_size(model, "intermediate_size")
    if is_conv:
        yield "short_conv.conv.weight", (hidden, 1, model_size(model, "conv_L_cache", 3))
        yield "short_conv.in_proj.weight", (3 * hidden, hidden)
        yield "short_conv.out_proj.weight", (hidden, hidden)
    else:
        yield "self_attn.qkv_proj.weight", ((heads + 2 * kv_heads) * head_dim, hidden)
        yield "self_attn.out_proj.weight", (hidden, heads * head_dim)
        yield "self_attn.q_layernorm.weight", (head_dim,)
        yield "self_attn.k_layernorm.weight", (head_dim,)
    yield "feed_forward.w13.weight", (2 * intermediate, hidden)
    yield "feed_forward.w2.weight", (hidden, intermediate)
    yield "operator_norm.weight", (hidden,)
    yield "ffn_norm.weight", (hidden,)


def _layer_shapes(model: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one decoder layer, in the order the engine walks them."""
    hidden, heads = model_size(model, "hidden_size"), model_size(model, "num_attention_heads")
    kv_heads = model_size(model, "num_key_value_heads", heads)
    head_dim = model_size(model, "head_dim", hidden // heads)
    intermediate = model_size(model, "intermediate_size")
    is_qwen3 = model.architecture == "Qwen3ForCausalLM"
    qkv = (heads + 2 * kv_heads) * head_dim
    for name in ("attention_bias", "mlp_bias"):
        if model.config.get(name):
            raise SettingError(
                f"{name}=True in the config of model {model.name!r} has no placement arithmetic"
            )
    yield "self_attn.qkv_proj.weight", (qkv, hidden)
    yield "self_attn.o_proj.weight", (hidden, heads * head_dim)
    if is_qwen3:
        yield "self_attn.q_norm.weight", (head_dim,)
        yield "self_attn.k_norm.weight", (head_dim,)
    yield "mlp.gate_up_proj.weight", (2 * intermediate, hidden)
    yield "mlp.down_proj.weight", (hidden, intermediate)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)


def model_size(model: ModelSpec, name: str, default: int | None = None) -> int:
    """A size from the model's config.

    Raises:
        SettingError: it is missing, or no whole number above 0.
    """
    found = model.config.get(name)
    found = default if found is None else found
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise SettingError(
            f"{name}={found!r} in the config of model {model.name!r} must be a whole number >= 1"
        )
    return found


def effective_dtype(setting: Setting, model: ModelSpec) -> str:
    """The dtype that the engine computes in: its argument's, or the model's own."""
    asked: Json = setting.engine_args.get("dtype")
    if asked == "auto":
        asked = model.config.get("dtype") or model.config.get("torch_dtype")
    return _DTYPE_NAMES.get(str(asked), str(asked)) if asked else model.dtype
