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
}
"""Architectures a checkpoint can be made for, and their `model_type`."""

EMBEDDING_STD = 0.3
MATRIX_STD = 0.09
"""With unit-RMS hidden states of width 128, logits spread by about 3 nats: few near-ties."""

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
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for layer_idx in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer_idx}.{name}.weight": s for name, s in block.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
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
    std = EMBEDDING_STD if name in ("model.embed_tokens.weight", "lm_head.weight") else MATRIX_STD
    values: npt.NDArray[np.float32] = ((sums - 2 * 65535) * (std / _SUM_OF_FOUR_STD)).astype("f4")
    return values.reshape(shape)
