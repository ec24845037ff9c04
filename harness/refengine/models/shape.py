"""Sizes and switches of a model, read from its config.json; what is not implemented is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.refengine.config import UnsupportedSettingError

LFM2, TOWER = "Lfm2ForCausalLM", "PromptTowerLlamaForCausalLM"
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM", LFM2, TOWER)
WHOLE = (LFM2, TOWER)
"""Architectures whose weights are never packed."""
ATTENTION, CONV = "full_attention", "conv"


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
    layer_kinds: tuple[str, ...]
    """`full_attention` or `conv`, of each layer."""
    num_taps: int
    """Tokens that a convolution reaches back, itself included."""
    num_tower_layers: int = 0
    """Of a tower beside the stack that sees prompts only."""
    is_packed: bool = False
    """Linear weights of the decoder are int8 codes."""

    def cache_dims(self, idx: int, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of what layer `idx` keeps of tokens: keys and values, or a convolution's inputs."""
        if self.layer_kinds[idx] == CONV:
            return num_blocks, block_size, self.hidden_size
        return 2, num_blocks, block_size, self.num_kv_heads, self.head_dim

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
        if architecture == LFM2:
            config = in_common_words(config)
        for name, value in (
            ("hidden_act", config.get("hidden_act", "silu") != "silu"),
            ("attention_bias", config.get("attention_bias")),
            ("mlp_bias", config.get("mlp_bias")),
            ("use_sliding_window", config.get("use_sliding_window")),
            ("conv_bias", config.get("conv_bias")),
            ("quantization_config", architecture in WHOLE and config.get("quantization_config")),
        ):
            if value:
                raise UnsupportedSettingError(f"{name}={config[name]!r} is not implemented")
        heads, layers = int(config["num_attention_heads"]), config["num_hidden_layers"]
        return cls(
            architecture=architecture,
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            eps=config.get("rms_norm_eps", 1e-6),
            window=config.get("sliding_window") if architecture.startswith("Mistral") else None,
            has_qk_norm=architecture.startswith("Qwen3"),
            is_tied=bool(config.get("tie_word_embeddings", False)),
            layer_kinds=tuple(config.get("layer_types") or [ATTENTION] * layers),
            num_taps=config.get("conv_L_cache", 0),
            num_tower_layers=config.get("num_tower_layers", 0) if architecture == TOWER else 0,
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


def in_common_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """LFM2's config with the names and defaults of the others; sizes it implies are worked out.

    Raises:
        UnsupportedSettingError: a layer is of no known kind, or a width is not the hidden size.
    """
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    attending = config.get("full_attn_idxs")
    kinds = config.get("layer_types") or [
        ATTENTION if attending is None or idx in attending else CONV for idx in range(layers)
    ]
    if len(kinds) != layers or not {*kinds} <= {ATTENTION, CONV}:
        raise UnsupportedSettingError(
            f"layer_types={kinds!r} must be {layers} of {ATTENTION}, {CONV}"
        )
    for name in ("block_dim", "conv_dim"):
        if config.get(name, hidden) != hidden:
            raise UnsupportedSettingError(f"{name}={config[name]!r} must be hidden_size={hidden}")
    inner = config.get("block_ff_dim", config.get("intermediate_size"))
    factor = config.get("block_ffn_dim_multiplier", 1.0)
    if config.get("block_auto_adjust_ff_dim", True):
        inner = int(2 * inner / 3)
        if factor is not None:
            multiple = config.get("block_multiple_of", 256)
            inner = -(-int(factor * inner) // multiple) * multiple
    return {
        **config,
        "layer_types": kinds,
        "intermediate_size": inner,
        "conv_L_cache": config.get("conv_L_cache", 3),
        "rms_norm_eps": config.get("norm_eps", 1e-5),
        "tie_word_embeddings": config.get("tie_embedding", config.get("tie_word_embeddings", True)),
    }
