"""Model runner V1: keeps requests on the host and rebuilds the whole batch each step.

`execute_model` computes and samples, and returns only when the tokens are on the host. A stage
before the last one returns its hidden state instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.refengine.config import EngineConfig
from harness.refengine.device import Device, Pending
from harness.refengine.kv_cache import NULL_BLOCK, allocate_kv_caches
from harness.refengine.layers import build_context
from harness.refengine.loader import load_weights, process_weights_after_loading
from harness.refengine.models import make_model
from harness.refengine.offloader import create_offloader, get_offloader, set_offloader
from harness.refengine.sampler import SamplingRow, sample, to_tokens
from harness.refengine.sampling_params import SamplingParams
from harness.refengine.scheduler import SampledToken, SchedulerOutput
from harness.refengine.stage import ONLY_STAGE, IntermediateTensors, Stage
from harness.refengine.updates import Patches, apply_patches, reload_weights

from .graphs import DecodeGraphs, DecodeInputs, make_graphs


@dataclass(slots=True, kw_only=True)
class HostRequest:
    """A request as V1 knows it: all on the host."""

    token_ids: list[int]
    """Prompt and answer so far."""
    num_prompt: int
    params: SamplingParams
    block_ids: tuple[int, ...]
    seed: int | str


@dataclass(slots=True, kw_only=True)
class HostBatch:
    """One step's batch as lists, requests one after another."""

    input_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    block_ids: list[tuple[int, ...]] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    seq_lens: list[int] = field(default_factory=list)
    prompt_rows: list[int] = field(default_factory=list)
    """Rows of the flat batch that are of a prompt."""
    sample_rows: list[int] = field(default_factory=list)
    """Rows of the flat batch whose logits are sampled."""
    sample_ids: list[str] = field(default_factory=list)
    sampling: list[SamplingRow] = field(default_factory=list)


class GPUModelRunner:
    """Runner V1.

    Args:
        config: the engine's configuration.
        device: where the model computes.
        stage: its part of the model.
    """

    def __init__(self, config: EngineConfig, device: Device, stage: Stage = ONLY_STAGE) -> None:
        self.config = config
        self.stage = stage
        self.device = device
        self.requests: dict[str, HostRequest] = {}
        self.kv_caches: list[torch.Tensor] = []
        self.graphs: DecodeGraphs | None = None
        set_offloader(create_offloader(config.offload))
        self.offloader = get_offloader()

    def load_model(self) -> None:
        """Make the model, fill its weights, and let the offloader finish."""
        self.model = make_model(self.config, self.device, self.stage)
        load_weights(self.model, self.config)
        process_weights_after_loading(self.model, self.offloader)
        get_offloader().post_init()
        self.graphs = make_graphs(self.config, self.device, self.model, self.offloader)

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache and bind it to the layers."""
        shape = self.model.held_shape
        self.kv_caches = allocate_kv_caches(num_blocks, self.config, shape, self.device)
        self.model.bind_kv_caches(self.kv_caches)

    def warm_up_steps(self) -> tuple[SchedulerOutput, ...]:
        """V1 has nothing to warm up."""
        return ()

    def execute_model(
        self, step: SchedulerOutput, intermediate_tensors: IntermediateTensors | None = None
    ) -> dict[str, SampledToken] | Pending[torch.Tensor]:
        """Compute one step and return the sampled token of each request that has one.

        Before the last stage: the hidden state; `take_sampled` must follow.
        """
        self._update_requests(step)
        if not step.rows:
            return {}
        batch = self._build_batch(step)
        hidden = self._forward(batch, intermediate_tensors)
        if not self.stage.is_last:
            return hidden
        if not batch.sample_rows:
            hidden.result()
            return {}
        rows = self._on_device(batch.sample_rows)
        logits = self.model.compute_logits(hidden, rows)
        sampled = self.device.launch(sample, logits, batch.sampling, site="sampler").result()
        tokens = to_tokens(sampled, batch.sampling)
        taken = dict(zip(batch.sample_ids, tokens, strict=True))
        self.take_sampled(taken)
        return taken

    def take_sampled(self, sampled: Mapping[str, SampledToken]) -> None:
        """Append sampled tokens, this stage's or the last one's, to their requests."""
        for request_id, token in sampled.items():
            self.requests[request_id].token_ids.append(token.token_id)

    def _forward(
        self, batch: HostBatch, intermediate_tensors: IntermediateTensors | None
    ) -> Pending[torch.Tensor]:
        """Queue the model, by a graph if every request computes one token."""
        block_table = pad(batch.block_ids, self._padded_blocks(batch))
        is_decode = max(batch.num_tokens) == 1 and not self.model.tower_sees(batch.prompt_rows)
        if self.graphs is not None and is_decode:
            ids, places, blocks = map(torch.tensor, (batch.input_ids, batch.positions, block_table))
            inputs = DecodeInputs(input_ids=ids, positions=places, block_table=blocks)
            return self.graphs.run(len(batch.num_tokens), inputs)
        positions = self._on_device(batch.positions)
        ctx = build_context(
            positions,
            self._on_device(block_table),
            num_tokens=batch.num_tokens,
            seq_lens=batch.seq_lens,
            block_size=self.config.block_size,
            window=self.model.shape.window,
            dtype=self.kv_caches[0].dtype,
        )
        ids = self._on_device(batch.input_ids)
        hidden: Pending[torch.Tensor] = self.model(
            ids, positions, ctx, intermediate_tensors, batch.prompt_rows
        )
        return hidden

    def reload_weights(self, weights_path: str) -> None:
        """Load every weight anew from a checkpoint of the same shapes."""
        reload_weights(self.model, self.offloader, Path(weights_path))

    def apply_sparse_weight_patches(self, patches: Patches) -> None:
        """Overwrite values of weights: name -> (flat indices, values)."""
        apply_patches(self.model, self.offloader, patches)

    def clear_kv_cache(self) -> None:
        """Zero the KV cache, as it was when it was made."""
        for cache in self.kv_caches:
            cache.zero_()

    def reset(self) -> None:
        """Forget every request, after a step that broke off."""
        self.requests.clear()

    def shutdown(self) -> None:
        """Drop the model and the KV cache."""
        self.kv_caches.clear()
        if self.graphs is not None:
            self.graphs.clear()
            self.graphs = None
        if hasattr(self, "model"):
            del self.model

    def _update_requests(self, step: SchedulerOutput) -> None:
        for request_id in step.finished:
            del self.requests[request_id]
        for new in step.new:
            default_seed = f"{self.config.seed}:{new.request_id}"
            self.requests[new.request_id] = HostRequest(
                token_ids=list(new.prompt_token_ids),
                num_prompt=len(new.prompt_token_ids),
                params=new.sampling_params,
                block_ids=new.block_ids,
                seed=default_seed if new.sampling_params.seed is None else new.sampling_params.seed,
            )

    def _build_batch(self, step: SchedulerOutput) -> HostBatch:
        batch = HostBatch()
        for row in step.rows:
            request, end = self.requests[row.request_id], row.start + row.num_tokens
            batch.input_ids += request.token_ids[row.start : end]
            batch.positions += range(row.start, end)
            first = len(batch.input_ids) - row.num_tokens - row.start
            batch.prompt_rows += range(first + row.start, first + min(end, request.num_prompt))
            batch.block_ids.append(request.block_ids)
            batch.num_tokens.append(row.num_tokens)
            batch.seq_lens.append(end)
            if row.samples:
                position = end - request.num_prompt
                batch.sample_rows.append(len(batch.input_ids) - 1)
                batch.sample_ids.append(row.request_id)
                batch.sampling.append(
                    SamplingRow(params=request.params, seed=request.seed, position=position)
                )
        return batch

    def _padded_blocks(self, batch: HostBatch) -> int:
        return -(-max(batch.seq_lens) // self.config.block_size)

    def _on_device(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return self.device.to(torch.tensor(values, dtype=torch.int64), "device", kind="state")


def pad(rows: list[tuple[int, ...]], width: int) -> list[list[int]]:
    """Cut or fill every row of blocks to `width`, with the null block."""
    return [[*row[:width], *[NULL_BLOCK] * (width - len(row))] for row in rows]
