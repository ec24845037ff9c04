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
        )
