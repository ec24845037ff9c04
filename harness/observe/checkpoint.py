"""Digests of the checkpoint's own bytes by parameter, fused and converted without the engine.

Read tensor by tensor, so that only one parameter is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from .source import WeightSource
from .weights import digest_of

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w13": ("w1", "w3"),
}
"""Segment of a fused parameter -> the checkpoint's segments, stacked by rows."""


def expected_digests(
    source: WeightSource,
    names: Iterable[str],
    dtype: torch.dtype,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    part: tuple[int, int] = (0, 1),
) -> dict[str, str]:
    """Digest what each named parameter must hold.

    Args:
        source: the checkpoint, a folder with *.safetensors, and patches laid over it.
        names: the engine's parameter names; those the checkpoint has no tensors for are left out.
        dtype: the engine's.
        shapes: parameter name -> its shape in this worker, where that may be a part of the whole.
        part: (index, of how many) of this worker among those that share each tensor.
    """
    files: dict[str, Any] = {}
    for path in sorted(Path(source.folder).glob("*.safetensors")):
        file: Any = safe_open(path, framework="pt")
        files |= dict.fromkeys(file.keys(), file)
    digests = {}
    for name in names:
        parts = [part_name for part_name in source_names(name) if part_name in files]
        if parts and len(parts) == len(source_names(name)):
            tensors = [files[part_name].get_tensor(part_name) for part_name in parts]
            held = _held(tensors, (shapes or {}).get(name), *part)
            held = held.to(dtype) if held.is_floating_point() else held
            digests[name] = digest_of(source.lay_over(name, held))
    return digests


def _held(
    tensors: Sequence[torch.Tensor], shape: tuple[int, ...] | None, index: int, num_parts: int
) -> torch.Tensor:
    """Stack by rows what one worker holds: all, or its part of each tensor's rows or columns."""
    whole = _as_computed(torch.cat(list(tensors)), shape)
    if shape is None or tuple(whole.shape) == shape:
        return whole
    if len(shape) == 2 and shape[1] != whole.shape[1]:
        return whole.chunk(num_parts, dim=1)[index].contiguous()
    if len(tensors) == 1 and shape[0] * num_parts > whole.shape[0]:
        rows = shape[0] * num_parts - whole.shape[0]  # embeddings are padded to equal parts
        whole = torch.cat([whole, whole.new_zeros(rows, *whole.shape[1:])])
        return whole.chunk(num_parts)[index]
    if len(tensors) != len(FUSED["qkv_proj"]):
        return torch.cat([tensor.chunk(num_parts)[index] for tensor in tensors])
    query, *others = tensors
    queries = query.chunk(num_parts)[index]
    rows = (shape[0] - queries.shape[0]) // len(others)  # of keys and of values
    start = index * others[0].shape[0] // num_parts // rows * rows  # shared where heads are few
    return torch.cat([queries, *(tensor[start : start + rows] for tensor in others)])


def _as_computed(whole: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor:
    """Packed codes and their scales as the embedded engine holds them once they are loaded.

    Args:
        whole: of the checkpoint: int32 `[out, in / 4]`, scales `[out, 1]`, or any other.
        shape: that the engine holds.
    """
    if whole.dtype == torch.int32:
        return whole.view(torch.uint8).T.contiguous().view(torch.int32)
    return whole.flatten() if shape == (whole.numel(),) else whole


def source_names(name: str) -> tuple[str, ...]:
    """The checkpoint's tensors that one parameter is made of, in the order of its rows."""
    name = name.replace(".short_conv.", ".conv.")
    head, _, tail = name.rpartition(".")
    head, _, segment = head.rpartition(".")
    if segment not in FUSED:
        return (name,)
    return tuple(f"{head}.{part}.{tail}" for part in FUSED[segment])
