"""Digests of the checkpoint's own bytes by parameter, fused and converted without the engine.

Read tensor by tensor, so that only one parameter is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from .weights import digest_of

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Segment of a fused parameter -> the checkpoint's segments, stacked by rows."""


def expected_digests(folder: Path, names: Iterable[str], dtype: torch.dtype) -> dict[str, str]:
    """Digest what each named parameter must hold.

    Args:
        folder: holds the checkpoint's *.safetensors.
        names: the engine's parameter names; those the checkpoint has no tensors for are left out.
        dtype: the engine's.
    """
    files: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        file: Any = safe_open(path, framework="pt")
        files |= dict.fromkeys(file.keys(), file)
    digests = {}
    for name in names:
        parts = [part for part in source_names(name) if part in files]
        if parts and len(parts) == len(source_names(name)):
            whole = torch.cat([files[part].get_tensor(part) for part in parts])
            digests[name] = digest_of(whole.to(dtype))
    return digests


def source_names(name: str) -> tuple[str, ...]:
    """The checkpoint's tensors that one parameter is made of, in the order of its rows."""
    head, _, tail = name.rpartition(".")
    head, _, segment = head.rpartition(".")
    if segment not in FUSED:
        return (name,)
    return tuple(f"{head}.{part}.{tail}" for part in FUSED[segment])
