"""models.yaml -> frozen entries; strict, every error with FILE:LINE:COLUMN.

Knows the file's format only, not where a checkpoint lies (models.py) nor how one is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from harness.core import DTYPE_BYTES, Dtype, Json, MatrixError

from .nodes import Item, read_document
from .packed import CODES_PER_WORD, INT8, quantization_config
from .tensors import MODEL_TYPES

Source = Literal["seeded", "shipped", "local", "hub"]

CONFIG_DEFAULTS: dict[str, Json] = {
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""What `config` of a seeded model may leave out."""

_LAYER_TYPES = ("conv", "full_attention")
_CONV_OR_ATTENTION = [_LAYER_TYPES[is_attention] for is_attention in (0, 0, 1, 0, 1, 0, 0, 1)]
_BY_ARCHITECTURE: dict[str, dict[str, Json]] = {
    "LlamaForCausalLM": {"mlp_bias": False},
    "MistralForCausalLM": {"sliding_window": 64},
    "Qwen3ForCausalLM": {"use_sliding_window": False, "sliding_window": None},
    "PromptTowerLlamaForCausalLM": {"mlp_bias": False, "num_tower_layers": 2},
    "Lfm2ForCausalLM": {
        "layer_types": _CONV_OR_ATTENTION,
        "conv_L_cache": 3,
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
}
_WORDS = {"torch_dtype": tuple(DTYPE_BYTES), "hidden_act": ("silu",)}
PACKABLE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")
_NEVER_TRUE = ("conv_bias", "block_auto_adjust_ff_dim")

_COMMON = ("description", "source", "architecture", "dtype", "aliases")
_KEYS = {
    "seeded": ("seed", "config", "quantization"),
    "shipped": ("path", "layers"),
    "local": ("path", "layers"),
    "hub": ("path", "layers", "stand_in"),
}
_OPTIONAL = {"seeded": ("quantization",), "shipped": (), "local": (), "hub": ("path", "stand_in")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model as models.yaml lists it; nothing is looked up or made yet."""

    name: str
    architecture: str
    """Hugging Face architecture, a key of `MODEL_TYPES`."""
    layers: int
    """Decoder layers."""
    source: Source
    dtype: Dtype = "float32"
    """What engines compute in."""
    description: str = ""
    aliases: tuple[str, ...] = ()
    path: str | None = None
    """shipped: inside the package; local, hub: a folder relative to models.yaml."""
    seed: int = 0
    config: Mapping[str, Json] = field(default_factory=dict)
    """Whole config.json content of a seeded model."""
    stand_in: str | None = None
    """hub: name of the model that stands in where the hub's is not to be had."""


def read_entries(file: Path) -> tuple[ModelEntry, ...]:
    """All models of `file`, in its order.

    Raises:
        MatrixError: the file cannot be read, or something in it is unknown, missing, given twice
            or of the wrong kind; the text starts with FILE:LINE:COLUMN.
    """
    if not file.is_file():
        raise MatrixError(f"models file {str(file)!r}: no such file")
    document = read_document(file)
    models = _require(document, document.mapping(("models",)), "models").mapping()
    entries: list[ModelEntry] = []
    taken: dict[str, str] = {}
    for name, item in models.items():
        entry = _read_entry(name, item)
        for word in (name, *entry.aliases):
            if word in taken:
                raise item.error(f"name {word!r} of {name!r} already belongs to {taken[word]!r}")
            taken[word] = name
        entries.append(entry)
    _check_stand_ins(entries, models)
    return tuple(entries)


def complete_config(architecture: str, given: Mapping[str, Json]) -> dict[str, Json]:
    """Whole config.json content of a seeded model: defaults, what `architecture` adds, `given`."""
    return {
        "architectures": [architecture],
        "model_type": MODEL_TYPES[architecture],
        **CONFIG_DEFAULTS,
        **_BY_ARCHITECTURE[architecture],
        **given,
    }


def _read_entry(name: str, item: Item) -> ModelEntry:
    source = _require(item, item.mapping(), "source").text(get_args(Source))
    values = item.mapping((*_COMMON, *_KEYS[source]))
    for key in ("architecture", "description", *_KEYS[source]):
        if key not in _OPTIONAL[source]:
            _require(item, values, key)
    architecture = values["architecture"].text(tuple(MODEL_TYPES))
    config = _read_config(values["config"], architecture) if "config" in values else {}
    if "quantization" in values:
        _check_packable(values["quantization"], config)
        config["quantization_config"] = quantization_config()
    texts = {key: values[key].text() for key in ("path", "stand_in") if key in values}
    dtype = values["dtype"].text(tuple(DTYPE_BYTES)) if "dtype" in values else "float32"
    aliases = values["aliases"].sequence(Item.text) if "aliases" in values else ()
    return ModelEntry(
        name=name,
        architecture=architecture,
        layers=config["num_hidden_layers"] if config else _whole(values["layers"], 1),
        source=cast("Source", source),
        dtype=cast("Dtype", dtype),
        description=values["description"].text(),
        aliases=tuple(aliases),
        seed=_whole(values["seed"], 0) if "seed" in values else 0,
        config=config,
        **texts,
    )


def _read_config(item: Item, architecture: str) -> dict[str, Json]:
    defaults = complete_config(architecture, {})
    known = [key for key in defaults if key not in ("architectures", "model_type")]
    given = {
        key: _read_config_value(key, value, defaults[key])
        for key, value in item.mapping(known).items()
    }
    config = complete_config(architecture, given)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % kv_heads:
        raise item.error(f"num_attention_heads={heads} must be a multiple of {kv_heads} kv heads")
    kinds, layers = config.get("layer_types"), config["num_hidden_layers"]
    if kinds is not None and len(kinds) != layers:
        raise item.error(f"layer_types has {len(kinds)} entries for {layers} layers")
    if config["head_dim"] % 2:
        raise item.error(f"head_dim={config['head_dim']} must be even: rotary pairs")
    return config


def _check_packable(item: Item, config: Mapping[str, Json]) -> None:
    """Refuse another form than int8, and models or sizes that do not pack four to a word."""
    item.text((INT8,))
    architecture = config["architectures"][0]
    if architecture not in PACKABLE:
        raise item.error(f"a {architecture} is never packed; {', '.join(PACKABLE)} can be")
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        if config[name] % CODES_PER_WORD:
            raise item.error(f"{name}={config[name]} must be a multiple of {CODES_PER_WORD}")


def _read_config_value(key: str, item: Item, default: Json) -> Json:
    if key in _WORDS:
        return item.text(_WORDS[key])
    if key == "layer_types":
        return list(item.sequence(lambda each: each.text(_LAYER_TYPES)))
    if isinstance(default, bool):
        return _read_flag(key, item)
    if isinstance(default, float):
        number = item.number()
        if number <= 0:
            raise item.error(f"expected a number > 0, found {number!r}")
        return number
    if key == "sliding_window" and item.value is None:
        return None
    return _whole(item, 0 if key.endswith("_token_id") else 1)


def _read_flag(key: str, item: Item) -> bool:
    flag = item.flag()
    if flag and key in _NEVER_TRUE:
        raise item.error(f"{key}=true is not implemented")
    return flag


def _check_stand_ins(entries: list[ModelEntry], models: Mapping[str, Item]) -> None:
    by_name = {entry.name: entry for entry in entries}
    for entry in entries:
        if entry.stand_in is None:
            continue
        item = models[entry.name].mapping()["stand_in"]
        stand_in = by_name.get(entry.stand_in)
        if stand_in is None or stand_in.source == "hub":
            raise item.error(
                f"stand_in={entry.stand_in!r} must name a model here that needs no hub"
            )
        if stand_in.architecture != entry.architecture:
            raise item.error(
                f"stand_in={entry.stand_in!r} is a {stand_in.architecture}, "
                f"but {entry.name!r} is a {entry.architecture}"
            )


def _require(item: Item, values: Mapping[str, Item], key: str) -> Item:
    if key not in values:
        raise item.error(f"missing key {key!r}")
    return values[key]


def _whole(item: Item, low: int) -> int:
    number = item.whole()
    if number < low:
        raise item.error(f"expected a whole number >= {low}, found {number}")
    return number
