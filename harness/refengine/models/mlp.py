"""Linear weights of a decoder, packed or not, and the gated MLP made of them."""

from __future__ import annotations

import torch
from torch import nn

from harness.refengine.device import Device

from .shape import ModelShape
from .weight import PackedLinear, Weight


class MLP(nn.Module):
    """Weights of one gated MLP."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.gate_up_proj = make_linear(device, dtype, shape, 2 * inner, hidden, parts=2)
        self.down_proj = make_linear(device, dtype, shape, hidden, inner)


def make_linear(
    device: Device, dtype: torch.dtype, shape: ModelShape, out: int, inputs: int, *, parts: int = 1
) -> Weight | PackedLinear:
    """A linear weight of the decoder, of `parts` of the checkpoint's, packed where that is."""
    if shape.is_packed:
        return PackedLinear(device, dtype, out, inputs, parts=parts)
    return Weight(device, dtype, out, inputs)
