"""Where every parameter's bytes of record are, asked of the allocation under each live tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from harness.core import ParamPlacement
from harness.engines.base import EngineView

from .buffers import slot_at
from .copies import copy_recorder
from .drift import Drift

if TYPE_CHECKING:
    import torch
    from torch import nn


def read_placement(view: EngineView, drift: Drift) -> tuple[ParamPlacement, ...]:
    """One entry for each named parameter, in the engine's order."""
    model = drift.read(lambda: view.model, None)
    if model is None:
        return ()
    module_names = {id(module): name for name, module in model.named_modules()}
    prefetched: dict[str, torch.Tensor] = {}
    for item in drift.read(view.offloaded_modules, ()):
        prefix = module_names.get(id(item.module))
        if prefix is None:
            drift.names.append(f"{type(item.module).__name__} is not a module of the model")
            continue
        prefetched.update({f"{prefix}.{name}": copy for name, copy in item.host_copies.items()})
    named = dict(model.named_parameters())
    drift.names += [f"no parameter {name}" for name in prefetched if name not in named]
    found = [
        drift.read(partial(_placement, view, name, param, prefetched), None)
        for name, param in named.items()
    ]
    return tuple(placement for placement in found if placement is not None)


def _placement(
    view: EngineView, name: str, param: torch.Tensor, prefetched: Mapping[str, torch.Tensor]
) -> ParamPlacement:
    host_copy = prefetched.get(name)
    if host_copy is None:
        host_copy = view.host_copy(param)
    record = param.data if host_copy is None else host_copy
    space = view.space_of(record)
    is_offloaded = space != "device"
    return ParamPlacement(
        name=name,
        layer_idx=view.layer_of(name),
        shape=tuple(param.shape),
        dtype=str(param.dtype).removeprefix("torch."),
        num_bytes=record.nbytes,
        space=space,
        is_offloaded=is_offloaded,
        is_pinned=is_offloaded and view.is_pinned(record),
        is_uva=is_offloaded and _is_view(view, name, param),
        slot_idx=slot_at(view, param),
    )


def _is_view(view: EngineView, name: str, param: torch.Tensor) -> bool:
    """Whether compute reads a parameter's bytes where they are, in host memory.

    What compute and copies were seen to read decides; before anything computed, or without a
    recorder, the way the engine is wired does. What the engine says of itself does not count.
    """
    if not view.is_host_view(param):
        return False
    recorder = copy_recorder(view)
    seen = None if recorder is None else recorder.was_viewed(param)
    return not has_wrapped_forward(view.model, name) if seen is None else seen


def has_wrapped_forward(model: nn.Module, name: str) -> bool:
    """Whether a module that holds the named parameter has code of its own before `forward`."""
    module: nn.Module | None = model
    for part in name.split("."):
        if module is None:
            return False
        if "forward" in vars(module) or module._forward_pre_hooks:
            return True
        module = module._modules.get(part)
    return False
