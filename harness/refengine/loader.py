"""Fill a model's parameters: fused from safetensors, or at random from a seed.

Writes through `param.data.copy_`, so it does not matter where an offloader has put the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from .config import ConfigError, EngineConfig, UnsupportedSettingError
from .models import CausalLM, PackedLinear
from .offloader import BaseOffloader

FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "w1": ("w13", 0),
    "w3": ("w13", 1),
}
"""Checkpoint segment -> (parameter segment, which part of its rows)."""


def fill(destination: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
    """Write a parameter's bytes at once; nothing is queued yet that could use them."""
    del name
    destination.copy_(tensor)


def load_weights(model: CausalLM, config: EngineConfig) -> None:
    """Fill every parameter of `model`, each row exactly once.

    Raises:
        ConfigError: the checkpoint lacks a tensor, has one too many, or one of another shape.
        UnsupportedSettingError: packed weights are to be made at random.
    """
    if config.load_format != "dummy":
        load_checkpoint(model, Path(config.model), {n: p.data for n, p in model.named_parameters()})
    elif model.shape.is_packed:
        raise UnsupportedSettingError("load_format='dummy' cannot make packed weights")
    else:
        fill_random(model, config.seed)


def load_checkpoint(
    model: CausalLM,
    folder: Path,
    destinations: Mapping[str, torch.Tensor],
    write: Callable[[torch.Tensor, torch.Tensor, str], object] = fill,
) -> None:
    """Fill every destination from a folder, each row exactly once.

    Args:
        model: whose parameters these are.
        folder: holds *.safetensors of the model's shapes.
        destinations: parameter name -> memory for it, in the form a checkpoint fills.
        write: given where to, the bytes, and the parameter's name.

    Raises:
        ConfigError: as `load_weights`; destinations may hold half of each checkpoint then.
    """
    parts, whole = fused_parts(model), model.whole_shapes()
    left = {name: dims[0] for name, dims in whole.items()}
    for name, tensor in read_checkpoint(folder):
        if name.endswith("rotary_emb.inv_freq") or (
            model.shape.is_tied and name == "lm_head.weight"
        ):
            continue
        target, part = fused_name(name)
        if target not in whole:
            raise ConfigError(f"tensor {name!r} in {folder} belongs to no parameter")
        offset, rows = 0, whole[target][0]
        if part is not None:
            is_shape = target.endswith("weight_shape")
            offset, rows = (2 * part, 2) if is_shape else parts[target.rsplit(".", 2)[1]][part]
        needed = [rows, *whole[target][1:]]
        if needed != list(tensor.shape):
            raise ConfigError(
                f"tensor {name!r} has shape {list(tensor.shape)}, the model needs {needed} "
                f"(config.json of {folder})"
            )
        left[target] -= tensor.shape[0]
        if (destination := destinations.get(target)) is not None:  # else another stage holds it
            write(destination.narrow(0, offset, rows), tensor, target)
    for name, rows_left in left.items():
        if rows_left:
            raise ConfigError(f"parameter {name!r} is not filled by the checkpoint {folder}")


def process_weights_after_loading(model: nn.Module, offloader: BaseOffloader) -> None:
    """Let modules bring what was loaded into the form they compute with, where it stands.

    Raises:
        ConfigError: what was loaded contradicts itself.
    """
    for module in model.modules():
        if isinstance(module, PackedLinear):
            with offloader.device_loading_context(module):
                module.process_weights_after_loading()


def fused_name(name: str) -> tuple[str, int | None]:
    """Parameter that a checkpoint's tensor goes to, and which part of it (None: all)."""
    name = name.replace(".conv.", ".short_conv.", 1)
    head, segment, tail = name.rsplit(".", 2) if name.count(".") >= 2 else ("", "", name)
    if segment not in FUSED:
        return name, None
    fused, part = FUSED[segment]
    return f"{head}.{fused}.{tail}", part


def fused_parts(model: CausalLM) -> dict[str, list[tuple[int, int]]]:
    """(first row, rows) of each part of the fused parameters."""
    shape = model.shape
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    inner = shape.intermediate_size
    return {
        "qkv_proj": [(0, q), (q, kv), (q + kv, kv)],
        "gate_up_proj": [(0, inner), (inner, inner)],
        "w13": [(0, inner), (inner, inner)],
    }


def read_checkpoint(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a folder's *.safetensors, one at a time.

    Raises:
        ConfigError: the folder holds none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"model={str(folder)!r} has no *.safetensors: use load_format='dummy'")
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tensors.get_tensor(name)


def fill_random(model: CausalLM, seed: int) -> None:
    """Norms become ones, other weights normal with deviation 0.02; same seed, same bytes.

    Those of other stages are drawn too, so that a model is the same however it is spread.
    """
    generator = torch.Generator().manual_seed(seed)
    params = dict(model.named_parameters())
    for name, dims in model.whole_shapes().items():
        values = torch.ones(dims)
        if len(dims) > 1:
            values.normal_(0.0, 0.02, generator=generator)
        if name in params:
            params[name].data.copy_(values)
