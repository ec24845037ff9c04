"""Finds a hub model on this machine, or downloads it where that is allowed; never needs to.

Reads the hub cache by its folder layout, so huggingface_hub may be absent. The environment is
always handed in.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 5.0
"""How long the hub may take to say that a file exists."""

PATTERNS = ("config.json", "generation_config.json", "tokenizer*", "*.safetensors*")


def locate_hub_cache(env: Mapping[str, str]) -> Path:
    """The hub's cache folder as huggingface_hub would choose it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    return locate_user_cache(env) / "huggingface" / "hub"


def locate_user_cache(env: Mapping[str, str]) -> Path:
    """XDG's cache folder of the user."""
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]).expanduser()
    return Path(env.get("HOME") or Path.home()) / ".cache"


def is_complete(folder: Path) -> bool:
    """True when `folder` has config.json and every safetensors file that its index names."""
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return True
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((folder / str(shard)).is_file() for shard in shards)


def find_snapshot(repo_id: str, env: Mapping[str, str]) -> Path | None:
    """The complete snapshot of `repo_id` in the hub cache: `main` first, else the last by name."""
    home = locate_hub_cache(env) / ("models--" + repo_id.replace("/", "--"))
    candidates = sorted((home / "snapshots").glob("*"), reverse=True)
    try:
        main = home / "snapshots" / (home / "refs" / "main").read_text(encoding="utf-8").strip()
        candidates.insert(0, main)
    except OSError:
        pass  # a cache without refs/main is a legitimate one
    return next((folder for folder in candidates if is_complete(folder)), None)


def download_snapshot(repo_id: str, env: Mapping[str, str]) -> Path | str:
    """Download `repo_id` into the hub cache.

    Returns:
        The folder, or one line that says why there is none.
    """
    if env.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        return "huggingface_hub is not installed"
    try:
        found = hub.snapshot_download(
            repo_id,
            cache_dir=str(locate_hub_cache(env)),
            allow_patterns=list(PATTERNS),
            etag_timeout=TIMEOUT_S,
        )
    except Exception as error:  # whatever the network and its client raise: the reason is kept
        lines = str(error).strip().splitlines()
        return f"the hub gave {type(error).__name__}" + (f": {lines[0]:.120}" if lines else "")
    folder = Path(found)
    return folder if is_complete(folder) else "the hub has no safetensors of it"
