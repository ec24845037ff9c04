"""Modules that hold weights and do not compute: a layer launches work with what they hold."""

from __future__ import annotations

import torch
from torch import nn

from harness.refengine.device import Device


class Weight(nn.Module):
    """A module that only holds `weight`; the layer above computes with it."""

    full_name = ""
    """Of `weight` in the whole model."""

    def __init__(self, device: Device, dtype: torch.dtype, *dims: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(device.empty(dims, dtype), requires_grad=False)

    @property
    def now(self) -> torch.Tensor:
        """The bytes `weight` stands for now, with its name: a launch keeps them if it moves on."""
        return named(self.weight.data, self.full_name)


def named(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Write on a tensor object which of the model's tensors it stands for, for observers."""
    tensor.param_name = name  # type: ignore[attr-defined]
    return tensor
