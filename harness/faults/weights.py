"""Faults of content: the bytes of a host copy are not the checkpoint's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core import HarnessError
from harness.engines.base import EngineView

from .base import ACCELERATE_MODES, OFFLOADING, WITH_VLLM, Fault

if TYPE_CHECKING:
    import torch


DAMAGE_FACTOR = -8.0
"""Large enough that a trained model cannot shrug it off: a control must not be a near-tie."""


def _damage_middle_layer(view: EngineView) -> str:
    import torch

    copies = host_copies(view)
    layers = sorted({layer for name in copies if (layer := view.layer_of(name)) is not None})
    if not layers:
        raise HarnessError(
            "fault 'host-copy-damaged' found no offloaded parameter to damage: a control that "
            "damages nothing proves nothing; ask for an offload that takes effect"
        )
    middle = layers[len(layers) // 2]
    chosen = max((n for n in copies if view.layer_of(n) == middle), key=lambda n: copies[n].nbytes)
    view.synchronize()
    claim = getattr(view, "claim_copy", None)  # where what is looked at may be a stand-in
    copy = copies[chosen] if claim is None else claim(chosen)
    with torch.no_grad():
        copy.copy_(copy.roll(1, dims=0).mul(DAMAGE_FACTOR))
    return f"the host copy of {chosen} ({copies[chosen].nbytes} bytes) is overwritten"


def host_copies(view: EngineView) -> dict[str, torch.Tensor]:
    """Full parameter name -> host copy, for every offloaded parameter of a live engine."""
    copies = {}
    for name, param in view.model.named_parameters():
        copy = view.host_copy(param)
        if copy is not None:
            copies[name] = copy
    names = {id(module): name for name, module in view.model.named_modules()}
    for offloaded in view.offloaded_modules():
        for name, copy in offloaded.host_copies.items():
            copies[f"{names[id(offloaded.module)]}.{name}"] = copy
    return copies


HOST_COPY_DAMAGED = Fault(
    name="host-copy-damaged",
    summary="the largest host copy of the middle offloaded layer holds other values",
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="nothing: a harness that misses it cannot see wrong weights at all",
    engines=(*WITH_VLLM, "accelerate"),
    modes=(*OFFLOADING, *ACCELERATE_MODES),
    after_start=_damage_middle_layer,
)
