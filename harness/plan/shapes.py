"""Every parameter of a model as vLLM names it, fused and in its order, from config.json alone.

Knows no engine, no torch and no checkpoint bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness.core import DTYPE_BYTES, Json, ModelSpec, Setting, SettingError

LFM2 = "Lfm2ForCausalLM"
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM", LFM2)
_DTYPE_NAMES = {"half": "float16", "float": "float32"}


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

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def parameter_shapes(model: ModelSpec, *, dtype: str | None = None) -> tuple[ParamShape, ...]:
    """Every parameter of a model in the engine's order.

    Args:
        model: needs only its architecture, config and dtype.
        dtype: computes in this dtype instead of the model's own.

    Raises:
        SettingError: the architecture or dtype is unknown, or the config lacks a size.
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
    found = [("model.embed_tokens.weight", None, "model.embed_tokens.weight", (vocab, hidden))]
    shapes: list[tuple[str, int | None, str, tuple[int, ...]]] = [*found]
    for idx, layer in enumerate(_layers(model)):
        shapes += [(f"model.layers.{idx}.{name}", idx, name, shape) for name, shape in layer]
    norm = "model.embedding_norm.weight" if model.architecture == LFM2 else "model.norm.weight"
    shapes.append((norm, None, norm, (hidden,)))
    if not model.config.get("tie_word_embeddings", False):
        shapes.append(("lm_head.weight", None, "lm_head.weight", (vocab, hidden)))
    return tuple(
        ParamShape(name=name, layer_idx=idx, relative_name=relative, shape=shape, dtype=dtype)
        for name, idx, relative, shape in shapes
    )


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
