"""Sizes and switches of a model, read from its config.json; what is not implemented is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.refengine.config import UnsupportedSettingError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model, read from its config.json."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    window: int | None
    """Sliding window in tokens; None attends to everything."""
    has_qk_norm: bool
    is_tied: bool
    """The output projection is the embedding."""
    is_packed: bool = False
    """Linear weights of the decoder are int8 codes."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read a checkpoint's config.

        Raises:
            UnsupportedSettingError: the architecture, activation or a bias is not implemented.
        """
        architecture = (config.get("architectures") or ["unknown"])[0]
        if architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UnsupportedSettingError(f"architecture={architecture!r} must be one of {known}")
        for name, value in (
            ("hidden_act", config.get("hidden_act", "silu") != "silu"),
            ("attention_bias", config.get("attention_bias")),
            ("mlp_bias", config.get("mlp_bias")),
            ("use_sliding_window", config.get("use_sliding_window")),
        ):
            if value:
                raise UnsupportedSettingError(f"{name}={config[name]!r} is not implemented")
        heads = int(config["num_attention_heads"])
        return cls(
            architecture=architecture,
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            eps=config.get("rms_norm_eps", 1e-6),
            window=config.get("sliding_window") if architecture.startswith("Mistral") else None,
            has_qk_norm=architecture.startswith("Qwen3"),
            is_tied=bool(config.get("tie_word_embeddings", False)),
            is_packed=is_packed(config.get("quantization_config")),
        )


PACKED = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "channel",
    "dynamic": False,
    "group_size": None,
    "actorder": None,
    "block_structure": None,
}
"""What the weights of a packed checkpoint may say of themselves."""
DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
"""What holds where they say nothing."""


def is_packed(config: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint's linear weights are packed int8 codes; None: it says nothing.

    Raises:
        UnsupportedSettingError: they are quantized in another way, with the first thing that is.
    """
    if config is None:
        return False
    groups = dict(config.get("config_groups") or {})
    group = dict(next(iter(groups.values()), {}))
    weights = dict(group.get("weights") or {})
    wanted = {
        "quant_method": (config.get("quant_method"), "compressed-tensors"),
        "format": (config.get("format"), "pack-quantized"),
        "ignore": (config.get("ignore"), ["lm_head"]),
        "config_groups": (len(groups), 1),
        "targets": (group.get("targets"), ["Linear"]),
        "input_activations": (group.get("input_activations"), None),
        "output_activations": (group.get("output_activations"), None),
        "kv_cache_scheme": (config.get("kv_cache_scheme"), None),
        **{f"weights.{k}": (weights.get(k, DEFAULTS.get(k)), v) for k, v in PACKED.items()},
    }
    for name, (found, value) in wanted.items():
        if found != value:
            raise UnsupportedSettingError(
                f"quantization_config {name}={found!r} is not implemented, only {value!r}"
            )
    return True
