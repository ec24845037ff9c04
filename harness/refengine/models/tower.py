"""A tower beside the decoder's stack: it sees a prompt's embeddings, and answers run without it.

To an offloader it is what the vision tower of a multimodal model is: large, made outside the stack,
with layers of its own that are numbered from 0 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from harness.refengine.device import Device, Pending
from harness.refengine.layers import mlp_block

from .mlp import MLP
from .shape import ModelShape
from .weight import Weight, operands


class TowerLayer(nn.Module):
    """Weights of one gated MLP and its norm."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        self.mlp = MLP(device, dtype, shape)
        self.norm = Weight(device, dtype, shape.hidden_size)


class PromptTower(nn.Module):
    """Layers that each token of a prompt passes by itself, between embedding and decoder."""

    def __init__(self, device: Device, dtype: torch.dtype, shape: ModelShape) -> None:
        super().__init__()
        self.device, self.eps = device, shape.eps
        self.layers = nn.ModuleList(
            TowerLayer(device, dtype, shape) for _ in range(shape.num_tower_layers)
        )

    def forward(
        self, hidden: Pending[torch.Tensor], prompt_rows: Sequence[int]
    ) -> Pending[torch.Tensor]:
        """Queue the tower on some rows of `hidden` `[tokens, hidden]`; the others stay as they are.

        Args:
            hidden: embeddings of a flat batch.
            prompt_rows: rows that are of a prompt; at least one.
        """
        launch, rows = self.device.launch, torch.tensor(prompt_rows)
        features = launch(take_rows, hidden, rows, site="prompt_tower.input")
        for idx, module in enumerate(self.layers):
            layer = cast("TowerLayer", module)
            weights = (layer.norm.now, layer.mlp.gate_up_proj.now, layer.mlp.down_proj.now)
            features = launch(
                mlp_block, features, self.eps, *weights, reads=operands(*weights),
                site=f"prompt_tower.layers.{idx}",
            )  # fmt: skip
        return launch(put_rows, hidden, rows, features, site="prompt_tower.output")


def take_rows(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Work: some rows."""
    return hidden[rows]


def put_rows(hidden: torch.Tensor, rows: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Work: `hidden` with some rows replaced."""
    result = hidden.clone()
    result[rows] = features
    return result
