"""A model's name -> ModelSpec: models.yaml names and aliases, local folders, hub ids, stand-ins."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from harness.core import DTYPE_BYTES, Dtype, Json, ModelNotFoundError, ModelSpec, UsageError

from .catalog import ModelEntry, read_entries
from .checkpoints import ensure_checkpoint, read_config
from .hub import download_snapshot, find_snapshot, is_complete, locate_user_cache
from .tensors import MODEL_TYPES

PACKAGE = Path(__file__).resolve().parents[1]

CHANGED_SEED = 977
"""Seed of the weights that a model is reloaded with."""
_NEEDED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)


def load_model(
    name: str,
    *,
    models_file: Path | None = None,
    dtype: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ModelSpec:
    """The model called `name`, its checkpoint ready on disk.

    Args:
        name: a name or alias of models.yaml, a folder with config.json, or a hub id. A hub model
            that can be had neither here nor from the hub is replaced by its stand-in, which
            `ModelSpec.stand_in_for` says.
        models_file: another models.yaml; None is the project's own.
        dtype: what the engine computes in; None is the entry's own (float32 unless it
            says else), or a folder's own.
        env: environment to read HARNESS_CACHE, XDG_CACHE_HOME, HOME and the hub's variables from;
            None is this process's.

    Raises:
        ModelNotFoundError: nothing goes by that name, or its architecture is not supported.
        MatrixError: models.yaml is wrong; the text has FILE:LINE:COLUMN.
        UsageError: `dtype` is unknown, or the cache folder cannot be written.
    """
    if dtype is not None and dtype not in DTYPE_BYTES:
        raise UsageError(
            f"dtype={dtype!r} must be one of {', '.join(DTYPE_BYTES)} (model {name!r})"
        )
    file = models_file or locate_models_file()
    entries = read_entries(file)
    entry = _find_entry(name, entries)
    environment = _read_environment(env)
    if entry is not None:
        spec = _load_entry(entry, entries, file.resolve().parent, environment)
    else:
        spec = _load_unlisted(name, entries, environment)
    return replace(spec, dtype=cast("Dtype", dtype)) if dtype is not None else spec


def ensure_changed(model: ModelSpec) -> Path:
    """A checkpoint of a model's very shapes with other weights, made in the cache when absent."""
    cache = locate_checkpoint_cache(os.environ)
    name = f"{Path(model.path).name}-changed"
    return ensure_checkpoint(name, model.config, seed=CHANGED_SEED, cache_dir=cache)


def list_models(models_file: Path | None = None) -> list[ModelEntry]:
    """Every model of models.yaml, in its order; nothing is made or looked up.

    Raises:
        MatrixError: models.yaml is wrong; the text has FILE:LINE:COLUMN.
    """
    return list(read_entries(models_file or locate_models_file()))


def locate_models_file() -> Path:
    """models.yaml inside the installed package, or at the root of a checkout.

    Raises:
        ModelNotFoundError: neither is there.
    """
    places = (PACKAGE / "models.yaml", PACKAGE.parent / "models.yaml")
    for place in places:
        if place.is_file():
            return place
    raise ModelNotFoundError(
        f"no models.yaml at {places[0]} or {places[1]}: the installation is incomplete"
    )


def locate_checkpoint_cache(env: Mapping[str, str]) -> Path:
    """Where seeded checkpoints are made: HARNESS_CACHE, else the user's cache folder."""
    if env.get("HARNESS_CACHE"):
        return Path(env["HARNESS_CACHE"]).expanduser().resolve() / "checkpoints"
    return locate_user_cache(env) / "offload-harness" / "checkpoints"


def _read_environment(env: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if env is None else env


def _find_entry(name: str, entries: Iterable[ModelEntry]) -> ModelEntry | None:
    return next((e for e in entries if name == e.name or name in e.aliases), None)


def _load_entry(
    entry: ModelEntry, entries: tuple[ModelEntry, ...], base: Path, env: Mapping[str, str]
) -> ModelSpec:
    if entry.source == "hub":
        return _load_hub_entry(entry, entries, base, env)
    if entry.source == "seeded":
        folder = ensure_checkpoint(
            entry.name, entry.config, seed=entry.seed, cache_dir=locate_checkpoint_cache(env)
        )
    else:
        root = PACKAGE if entry.source == "shipped" else base
        folder = root / Path(str(entry.path)).expanduser()
    spec = _read_folder(entry.name, folder)
    if spec.architecture != entry.architecture:
        raise ModelNotFoundError(
            f"model {entry.name!r}: {folder} holds a {spec.architecture}, "
            f"models.yaml says {entry.architecture}"
        )
    return replace(spec, dtype=entry.dtype, source=entry.source, seed=entry.seed)


def _load_hub_entry(
    entry: ModelEntry, entries: tuple[ModelEntry, ...], base: Path, env: Mapping[str, str]
) -> ModelSpec:
    copy = None if entry.path is None else base / Path(entry.path).expanduser()
    if copy is not None and is_complete(copy):
        return replace(_read_folder(entry.name, copy), dtype=entry.dtype)
    found = find_snapshot(entry.name, env) or download_snapshot(entry.name, env)
    if isinstance(found, Path):
        return replace(_read_folder(entry.name, found), dtype=entry.dtype)
    if entry.stand_in is None:
        raise ModelNotFoundError(
            f"model {entry.name!r} is not on this machine and {found}; "
            "give `path` of a local copy or a `stand_in` in models.yaml"
        )
    stand_in = _find_entry(entry.stand_in, entries)
    assert stand_in is not None, "read_entries checks every stand_in"
    return replace(_load_entry(stand_in, entries, base, env), stand_in_for=entry.name)


def _load_unlisted(name: str, entries: tuple[ModelEntry, ...], env: Mapping[str, str]) -> ModelSpec:
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return _read_folder(name, folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelNotFoundError(
            f"model path={name!r}: no such folder; "
            "give a folder with config.json and *.safetensors, or a name from models.yaml"
        )
    reason = ""
    if all(name.split("/")) and "/" in name:
        found = find_snapshot(name, env) or download_snapshot(name, env)
        if isinstance(found, Path):
            return _read_folder(name, found)
        reason = f" It is not in the hub cache, and {found}."
    names = [word for e in entries for word in (e.name, *e.aliases)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known = ", ".join(e.name for e in entries)
    raise ModelNotFoundError(f"Unknown model {name!r}.{reason} Known: {known}.{hint}")


def _read_folder(name: str, folder: Path) -> ModelSpec:
    """The model in `folder`; its config gets the values that older config files leave out."""
    config = read_config(folder)
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if architecture not in MODEL_TYPES:
        raise ModelNotFoundError(
            f"model {name!r}: architecture {architecture!r} in {folder / 'config.json'} "
            f"must be one of {', '.join(MODEL_TYPES)}"
        )
    for key in _NEEDED:
        if not isinstance(config.get(key), int) or config[key] < 1:
            raise ModelNotFoundError(
                f"model {name!r}: {key}={config.get(key)!r} in {folder / 'config.json'} "
                "must be a whole number >= 1"
            )
    if not any(folder.glob("*.safetensors")):
        raise ModelNotFoundError(f"model {name!r}: no *.safetensors in {folder}")
    own = config.get("dtype") or config.get("torch_dtype")
    return ModelSpec(
        name=name,
        architecture=architecture,
        config=_fill(config),
        path=str(folder.resolve()),
        dtype=own if own in DTYPE_BYTES else "float32",
    )


def _fill(config: dict[str, Json]) -> dict[str, Json]:
    if config["architectures"][0] == "Lfm2ForCausalLM":
        config = _lfm2_in_full(config)
    heads = config["num_attention_heads"]
    implied = {
        "head_dim": config["hidden_size"] // heads,
        "num_key_value_heads": heads,
        "tie_word_embeddings": False,
    }
    return config | {key: value for key, value in implied.items() if config.get(key) is None}


def _lfm2_in_full(config: dict[str, Json]) -> dict[str, Json]:
    """LFM2's config with what it only implies: kinds of layers, rows of the MLP, tied or not."""
    layers, attending = config["num_hidden_layers"], config.get("full_attn_idxs")
    kinds = config.get("layer_types") or [
        "full_attention" if attending is None or idx in attending else "conv"
        for idx in range(layers)
    ]
    inner = config.get("block_ff_dim") or config["intermediate_size"]
    factor = config.get("block_ffn_dim_multiplier", 1.0)
    if config.get("block_auto_adjust_ff_dim", True):
        inner = int(2 * inner / 3)
        if factor is not None:
            multiple = config.get("block_multiple_of", 256)
            inner = -(-int(factor * inner) // multiple) * multiple
    implied = {
        "layer_types": kinds,
        "intermediate_size": inner,
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": config.get("conv_L_cache", 3),
        "tie_word_embeddings": config.get("tie_embedding", config.get("tie_word_embeddings", True)),
    }
    stale = ("block_ff_dim", "tie_embedding")
    return {key: value for key, value in config.items() if key not in stale} | implied
