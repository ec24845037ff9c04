"""Pipeline parallel: which layers a stage holds, and what it holds besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .device import Pending

IntermediateTensors = Mapping[str, Pending[torch.Tensor]]
"""`hidden_states` of the stage before, on this stage's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One of several stages; the only one unless told otherwise."""

    rank: int = 0
    num_stages: int = 1

    @property
    def is_first(self) -> bool:
        """It embeds the tokens."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """It projects the hidden state, and samples."""
        return self.rank == self.num_stages - 1

    def layers(self, num_layers: int) -> range:
        """Its decoder layers; those left over go one each to the stages before the last."""
        sizes = [num_layers // self.num_stages] * self.num_stages
        for back in range(2, num_layers % self.num_stages + 2):
            sizes[-back] += 1
        start = sum(sizes[: self.rank])
        return range(start, start + sizes[self.rank])


ONLY_STAGE = Stage()
