"""Runner V2's request state: tensors on the device, one row of each a request's slot.

Methods that say "Work" run on the device's queue; the runner launches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.refengine.config import EngineConfig
from harness.refengine.device import Device
from harness.refengine.kv_cache import NULL_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A flat batch as the device holds it."""

    input_ids: torch.Tensor
    """int64 `[tokens]`."""
    positions: torch.Tensor
    """int64 `[tokens]`."""
    block_table: torch.Tensor
    """int64 `[requests, blocks]`."""


class DeviceState:
    """What the device knows of its requests: one row of each tensor is one slot."""

    def __init__(self, config: EngineConfig, device: Device) -> None:
        slots, length = config.max_num_seqs, config.model_len
        blocks = -(-length // config.block_size)
        self.token_ids = device.empty((slots, length), torch.int64, kind="state")
        self.num_computed = device.empty((slots,), torch.int64, kind="state")
        self.block_table = device.empty((slots, blocks), torch.int64, kind="state")
        self.all = (self.token_ids, self.num_computed, self.block_table)

    def fill_slot(self, slot: int, token_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        """Work: write a new request into its slot."""
        self.token_ids[slot, : len(token_ids)] = torch.tensor(token_ids)
        self.num_computed[slot] = 0
        self.block_table[slot] = NULL_BLOCK
        self.block_table[slot, : len(block_ids)] = torch.tensor(block_ids)

    def gather(self, slots: Sequence[int], num_tokens: Sequence[int]) -> Gathered:
        """Work: take the flat batch of some slots, and advance their counters."""
        device, total = self.num_computed.device, sum(num_tokens)
        rows = torch.tensor(slots, device=device)
        counts = torch.tensor(num_tokens, device=device)
        start = self.num_computed[rows]
        self.num_computed[rows] = start + counts
        token_rows, positions = rows, start
        if total != len(slots):
            which = torch.arange(len(slots), device=device)
            which = which.repeat_interleave(counts, output_size=total)
            first = counts.cumsum(0) - counts
            token_rows = rows[which]
            positions = start[which] + torch.arange(total, device=device) - first[which]
        return Gathered(
            input_ids=self.token_ids[token_rows, positions],
            positions=positions,
            block_table=self.block_table[rows],
        )

    def store(self, slots: Sequence[int], token_ids: torch.Tensor) -> None:
        """Work: append a sampled token to each slot, behind what it has computed."""
        rows = torch.tensor(slots, device=token_ids.device)
        self.token_ids[rows, self.num_computed[rows]] = token_ids
