"""The tensors of a seeded checkpoint: names, shapes and values, by architecture. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness.core import Json

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen3ForCausalLM": "qwen3",
    "Lfm2ForCausalLM": "lfm2",
    "PromptTowerLlamaForCausalLM": "llama",
}
"""Architectures a checkpoint can be made for, and their `model_type`."""

EMBEDDING_STD = 0.3
MATRIX_STD = 0.09
"""With unit-RMS hidden states of width 128, logits spread by about 3 nats: few near-ties."""
CONV_STD = 0.6
"""Of a convolution's few taps: what comes out is as large as what goes in."""

_SUM_OF_FOUR_STD = float(np.sqrt(4 * (65536**2 - 1) / 12))


def list_tensor_shapes(config: Mapping[str, Json]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint by its Hugging Face name, in the order of the layers.

    Args:
        config: config.json content; `architectures[0]` must be a key of `MODEL_TYPES`.

    Returns:
        name -> shape; matrices are (out_features, in_features).
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]
    if config["architectures"][0] == "Lfm2ForCausalLM":
        return _lfm2_shapes(config)
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q_rows, hidden),
        "self_attn.k_proj": (kv_rows, hidden),
        "self_attn.v_proj": (kv_rows, hidden),
        "self_attn.o_proj": (hidden, q_rows),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config["architectures"][0] == "Qwen3ForCausalLM":
        block |= {
            "self_attn.q_norm": (config["head_dim"],),
            "self_attn.k_norm": (config["head_dim"],),
        }
    shapes: dict[str, tuple[int, ...]] = {}
    tower = {name: block[name] for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}
    tower["norm"] = (hidden,)
    for idx in range(config.get("num_tower_layers", 0)):
        shapes |= {f"prompt_tower.layers.{idx}.{name}.weight": s for name, s in tower.items()}
    shapes["model.embed_tokens.weight"] = (config["vocab_size"], hidden)
    for layer_idx in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer_idx}.{name}.weight": s for name, s in block.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _lfm2_shapes(config: Mapping[str, Json]) -> dict[str, tuple[int, ...]]:
    """The same of LFM2, whose layers are of two kinds; its sizes must be worked out already."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]
    kinds: dict[str, dict[str, tuple[int, ...]]] = {
        "conv": {
            "conv.conv": (hidden, 1, config["conv_L_cache"]),
            "conv.in_proj": (3 * hidden, hidden),
            "conv.out_proj": (hidden, hidden),
        },
        "full_attention": {
            "self_attn.q_proj": (q_rows, hidden),
            "self_attn.k_proj": (kv_rows, hidden),
            "self_attn.v_proj": (kv_rows, hidden),
            "self_attn.out_proj": (hidden, q_rows),
            "self_attn.q_layernorm": (config["head_dim"],),
            "self_attn.k_layernorm": (config["head_dim"],),
        },
    }
    both: dict[str, tuple[int, ...]] = {
        "feed_forward.w1": (inner, hidden),
        "feed_forward.w2": (hidden, inner),
        "feed_forward.w3": (inner, hidden),
        "operator_norm": (hidden,),
        "ffn_norm": (hidden,),
    }
    table = (config["vocab_size"], hidden)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
    for idx, kind in enumerate(config["layer_types"]):
        block = {**kinds[kind], **both}
        shapes |= {f"model.layers.{idx}.{name}.weight": shape for name, shape in block.items()}
    shapes["model.embedding_norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = table
    return shapes


def make_tensor(name: str, shape: tuple[int, ...], *, seed: int) -> npt.NDArray[np.float32]:
    """One weight as float32 of `shape`; it depends on name, shape and seed only.

    Vectors (norms) are ones. A matrix entry is the scaled sum of four 16-bit draws, close to
    normal and exact in integers.
    """
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    raw = np.random.PCG64(int.from_bytes(digest[:16], "little")).random_raw(int(np.prod(shape)))
    sums = raw.astype("<u8").view("<u2").reshape(-1, 4).sum(axis=1, dtype=np.int64)
    std = CONV_STD if len(shape) == 3 else MATRIX_STD
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        std = EMBEDDING_STD
    values: npt.NDArray[np.float32] = ((sums - 2 * 65535) * (std / _SUM_OF_FOUR_STD)).astype("f4")
    return values.reshape(shape)
