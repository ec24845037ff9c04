"""Recorded decode steps: a graph for each batch size, made at its first use and replayed after.

Inputs come from static buffers, filled before each replay. The offloader's copies are inside: its
copy stream forks off and joins again by events of the graph; what it queued before is waited for
ahead of the graph, as no wait may cross a capture's boundary. Logits and sampling stay outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from harness.refengine.config import EngineConfig
from harness.refengine.device import Device, Graph, Pending
from harness.refengine.kv_cache import NULL_BLOCK
from harness.refengine.layers import AttentionContext, build_context
from harness.refengine.models import CausalLM
from harness.refengine.models.llama import Mixer
from harness.refengine.offloader import BaseOffloader


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """A batch of one token a request."""

    input_ids: torch.Tensor
    """int64 `[requests]`."""
    positions: torch.Tensor
    """int64 `[requests]`."""
    block_table: torch.Tensor
    """int64 `[requests, blocks]`."""

    @property
    def all(self) -> tuple[torch.Tensor, ...]:
        """Every tensor."""
        return self.input_ids, self.positions, self.block_table

    def first(self, num_rows: int) -> DecodeInputs:
        """The same memory, of the first requests only."""
        ids, positions, blocks = (tensor[:num_rows] for tensor in self.all)
        return DecodeInputs(input_ids=ids, positions=positions, block_table=blocks)

    def fill(self, batch: DecodeInputs) -> None:
        """Work: take over a batch; a block table that is narrower ends in null blocks."""
        width = batch.block_table.shape[1]
        self.input_ids.copy_(batch.input_ids)
        self.positions.copy_(batch.positions)
        self.block_table[:, :width] = batch.block_table
        self.block_table[:, width:] = NULL_BLOCK

    def read(self) -> DecodeInputs:
        """Work: what the buffers hold now."""
        ids, positions, blocks = (tensor.clone() for tensor in self.all)
        return DecodeInputs(input_ids=ids, positions=positions, block_table=blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded decode step."""

    graph: Graph
    inputs: DecodeInputs
    """The static buffers it reads."""
    hidden: Pending[torch.Tensor]
    """Of its latest replay, `[requests, hidden]`."""


class DecodeGraphs:
    """The recorded decode steps of one runner.

    Args:
        config: the engine's configuration.
        device: where they are recorded.
        model: what is recorded, with its weights loaded.
        offloader: the offloader of its weights, after `post_init`.

    Raises:
        OutOfDeviceMemoryError: no room for input buffers or temporary weights.
    """

    def __init__(
        self, config: EngineConfig, device: Device, model: CausalLM, offloader: BaseOffloader
    ) -> None:
        self.config, self.device, self.model, self.offloader = config, device, model, offloader
        rows, blocks = config.max_num_seqs, -(-config.model_len // config.block_size)
        ids, positions, table = (
            device.empty(shape, torch.int64, kind="graph_inputs")
            for shape in ((rows,), (rows,), (rows, blocks))
        )
        self.inputs = DecodeInputs(input_ids=ids, positions=positions, block_table=table)
        self.recorded: dict[int, Recorded] = {}
        """Batch size -> its graph."""
        self._addresses: tuple[int, ...] = ()
        offloader.reserve_for_graphs()

    def run(self, num_rows: int, batch: DecodeInputs | Pending[Any]) -> Pending[torch.Tensor]:
        """Queue one decode step by replaying its graph, recorded now if there is none.

        Args:
            num_rows: requests in the batch.
            batch: its inputs: an object with the fields of `DecodeInputs`, anywhere.

        Returns:
            Normed hidden state `[requests, hidden]`, valid until the next `run`.
        """
        if (addresses := self._addresses_now()) != self._addresses:
            self.clear()
            self._addresses = addresses
        inputs, site = self.inputs.first(num_rows), "graph.fill_inputs"
        self.device.launch(DecodeInputs.fill, inputs, batch, writes=inputs.all, site=site)
        if num_rows not in self.recorded:
            self.recorded[num_rows] = self._record(num_rows, inputs)
        recorded = self.recorded[num_rows]
        self.offloader.sync_prev_onload()
        recorded.graph.replay()
        return recorded.hidden

    def clear(self) -> None:
        """Forget every graph and the memory only it kept; each is recorded anew when needed.

        Call it before weights or the KV cache are moved or freed.
        """
        for recorded in self.recorded.values():
            recorded.graph.reset()
        self.recorded.clear()
        self._addresses = ()

    def _record(self, num_rows: int, inputs: DecodeInputs) -> Recorded:
        launch = self.device.launch
        self.offloader.sync_prev_onload()
        try:
            with self.device.capture(f"decode_{num_rows}") as graph:
                batch = launch(inputs.read, reads=inputs.all, site="graph.inputs")
                ctx = launch(self._build_context, batch, site="attention_context")
                input_ids = launch(attrgetter("input_ids"), batch, site="input_ids")
                positions = launch(attrgetter("positions"), batch, site="positions")
                hidden = self.model(input_ids, positions, ctx)
                self.offloader.join_after_forward()
        finally:
            self.offloader.sync_prev_onload()
        return Recorded(graph=graph, inputs=inputs, hidden=hidden)

    def _build_context(self, batch: DecodeInputs) -> AttentionContext:
        """Work: lengths are read from the inputs, so that one graph serves all of them."""
        return build_context(
            batch.positions,
            batch.block_table,
            num_tokens=(1,) * len(batch.positions),
            seq_lens=(batch.positions + 1).tolist(),
            block_size=self.config.block_size,
            window=self.model.shape.window,
            dtype=getattr(torch, self.config.dtype),
        )

    def _addresses_now(self) -> tuple[int, ...]:
        """Where the weights and the KV cache are, which graphs refer to by address."""
        caches = (m.kv_cache for m in self.model.modules() if isinstance(m, Mixer))
        tensors = (*self.model.parameters(), *self.model.buffers(), *caches)
        return tuple(tensor.data_ptr() for tensor in tensors)


def make_graphs(
    config: EngineConfig, device: Device, model: CausalLM, offloader: BaseOffloader
) -> DecodeGraphs | None:
    """The graphs of a runner; None where every step runs eagerly."""
    return None if config.enforce_eager else DecodeGraphs(config, device, model, offloader)
