"""Model runner V2: request state lives on the device, a slot for each request.

`execute_model` only queues the forward pass; `sample_tokens` queues sampling and an asynchronous
copy back, and returns an `AsyncOutput` that the engine waits for when it needs the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

import torch

from harness.refengine.config import EngineConfig
from harness.refengine.device import Device, Pending, Space
from harness.refengine.kv_cache import allocate_kv_caches
from harness.refengine.layers import AttentionContext, build_context
from harness.refengine.loader import load_weights, process_weights_after_loading
from harness.refengine.models import make_model
from harness.refengine.offloader import create_offloader, get_offloader, set_offloader
from harness.refengine.sampler import SamplingRow, sample
from harness.refengine.sampling_params import SamplingParams
from harness.refengine.scheduler import (
    NewRequest,
    SampledToken,
    ScheduledRequest,
    SchedulerOutput,
)
from harness.refengine.stage import ONLY_STAGE, IntermediateTensors, Stage
from harness.refengine.updates import Patches

from .graphs import DecodeGraphs, make_graphs
from .v1 import GPUModelRunner as V1GPUModelRunner
from .v2_output import AsyncOutput, pack, packed_width
from .v2_state import DeviceState, Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What the host remembers of a request."""

    idx: int
    num_prompt: int
    params: SamplingParams
    seed: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteState:
    """What `execute_model` leaves for `sample_tokens`."""

    hidden: Pending[torch.Tensor]
    rows: tuple[ScheduledRequest, ...]


class GPUModelRunner:
    """Runner V2.

    Args:
        config: the engine's configuration.
        device: where the model computes.
        stage: its part of the model.
    """

    def __init__(self, config: EngineConfig, device: Device, stage: Stage = ONLY_STAGE) -> None:
        self.config = config
        self.stage = stage
        self.device = device
        self.state = DeviceState(config, device)
        self.slots: dict[str, Slot] = {}
        self.free_slots = list(reversed(range(config.max_num_seqs)))
        self.kv_caches: list[torch.Tensor] = []
        self.graphs: DecodeGraphs | None = None
        self.execute_state: ExecuteState | None = None
        self.output_stream = device.new_stream("output")
        self.output_event = device.new_event("output_copied")
        self.output_space: Space = "pinned" if device.pin_memory_available else "host"
        self.output_buffer = torch.empty(0, dtype=torch.float64)
        self.last_output: AsyncOutput | None = None
        set_offloader(create_offloader(config.offload))
        self.offloader = get_offloader()

    def load_model(self) -> None:
        """Make the model, fill its weights, and let the offloader finish."""
        config = self.config
        self.model = make_model(config, self.device, self.stage)
        load_weights(self.model, config)
        process_weights_after_loading(self.model, self.offloader)
        get_offloader().post_init()
        self.graphs = make_graphs(config, self.device, self.model, self.offloader)

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache and bind it to the layers."""
        shape = self.model.held_shape
        self.kv_caches = allocate_kv_caches(num_blocks, self.config, shape, self.device)
        self.model.bind_kv_caches(self.kv_caches)

    def warm_up_steps(self) -> tuple[SchedulerOutput, ...]:
        """Three steps that carry no real request: prefill, decode, clean-up."""
        name, params = "_warm_up", SamplingParams(max_tokens=2)
        new = NewRequest(
            request_id=name, prompt_token_ids=(0, 0), sampling_params=params, block_ids=()
        )
        prefill = ScheduledRequest(request_id=name, start=0, num_tokens=2, samples=True)
        decode = ScheduledRequest(request_id=name, start=2, num_tokens=1, samples=True)
        return (
            SchedulerOutput(rows=(prefill,), new=(new,)),
            SchedulerOutput(rows=(decode,)),
            SchedulerOutput(finished=(name,)),
        )

    def execute_model(
        self, step: SchedulerOutput, intermediate_tensors: IntermediateTensors | None = None
    ) -> Pending[torch.Tensor] | None:
        """Queue one step's forward pass; `sample_tokens` must follow.

        Before the last stage it returns the hidden state, and `take_sampled` must follow.
        """
        assert self.execute_state is None, "sample_tokens() must follow execute_model()"
        self._update_slots(step)
        if not step.rows:
            return None
        slots = tuple(self.slots[row.request_id].idx for row in step.rows)
        num_tokens = tuple(row.num_tokens for row in step.rows)
        seq_lens = tuple(row.start + row.num_tokens for row in step.rows)
        state, launch = self.state, self.device.launch
        batch = launch(
            state.gather, slots, num_tokens,
            reads=state.all, writes=(state.num_computed,), site="prepare_inputs",
        )  # fmt: skip
        prompt_rows = self._prompt_rows(step.rows)
        is_decode = max(num_tokens) == 1 and not self.model.tower_sees(prompt_rows)
        hidden: Pending[torch.Tensor]
        if self.graphs is not None and is_decode:
            hidden = self.graphs.run(len(slots), batch)
            self.execute_state = ExecuteState(hidden=hidden, rows=step.rows)
            return None
        ctx = launch(self._build_context, batch, num_tokens, seq_lens, site="attention_context")
        input_ids = launch(attrgetter("input_ids"), batch, site="input_ids")
        positions = launch(attrgetter("positions"), batch, site="positions")
        hidden = self.model(input_ids, positions, ctx, intermediate_tensors, prompt_rows)
        if not self.stage.is_last:
            return hidden
        self.execute_state = ExecuteState(hidden=hidden, rows=step.rows)
        return None

    def take_sampled(self, sampled: Mapping[str, SampledToken]) -> None:
        """Queue the last stage's tokens into the slots of their requests."""
        if not sampled:
            return
        state, slots = self.state, tuple(self.slots[i].idx for i in sampled)
        ids = [token.token_id for token in sampled.values()]
        self.device.launch(
            state.store, slots, torch.tensor(ids, device=state.token_ids.device),
            reads=(state.num_computed,), writes=(state.token_ids,), site="pp_tokens",
        )  # fmt: skip

    def sample_tokens(self) -> AsyncOutput:
        """Queue sampling of the last `execute_model`, and the copy of its tokens to the host."""
        assert self.last_output is None or self.last_output.is_taken, "get_output() first"
        executed, self.execute_state = self.execute_state, None
        rows = executed.rows if executed else ()
        ids = [row.request_id for row in rows if row.samples]
        sampling = [self._sampling_row(row) for row in rows if row.samples]
        width = packed_width(sampling)
        table = self._host_table(len(ids), width)
        if executed and ids:
            last = torch.tensor([row.num_tokens for row in rows]).cumsum(0) - 1
            last = last[torch.tensor([row.samples for row in rows])]
            logits = self.model.compute_logits(executed.hidden, last)
            slots, state = tuple(self.slots[i].idx for i in ids), self.state
            packed = self.device.launch(
                sample_and_store, state, slots, logits, sampling,
                reads=(state.num_computed,), writes=(state.token_ids,), site="sampler",
            )  # fmt: skip
            self._copy_back(table, packed)
        self.last_output = AsyncOutput(table, self.output_event, ids, sampling)
        return self.last_output

    def reload_weights(self, weights_path: str) -> None:
        """Load every weight anew; V1's own implementation, which needs nothing of its runner."""
        V1GPUModelRunner.reload_weights(cast("V1GPUModelRunner", self), weights_path)

    def apply_sparse_weight_patches(self, patches: Patches) -> None:
        """Overwrite values of weights; V1's own implementation."""
        V1GPUModelRunner.apply_sparse_weight_patches(cast("V1GPUModelRunner", self), patches)

    def clear_kv_cache(self) -> None:
        """Zero the KV cache, as it was when it was made."""
        for cache in self.kv_caches:
            cache.zero_()

    def reset(self) -> None:
        """Forget every request and the step that broke off."""
        self.slots.clear()
        self.free_slots = list(reversed(range(self.config.max_num_seqs)))
        self.execute_state = self.last_output = None

    def shutdown(self) -> None:
        """Drop the model, the KV cache and the state."""
        self.kv_caches.clear()
        self.execute_state = self.last_output = None
        if self.graphs is not None:
            self.graphs.clear()
            self.graphs = None
        self.output_buffer = torch.empty(0, dtype=torch.float64)
        for name in ("model", "state"):
            self.__dict__.pop(name, None)

    def _update_slots(self, step: SchedulerOutput) -> None:
        for request_id in step.finished:
            self.free_slots.append(self.slots.pop(request_id).idx)
        for new in step.new:
            params, default_seed = new.sampling_params, f"{self.config.seed}:{new.request_id}"
            slot = Slot(
                idx=self.free_slots.pop(),
                num_prompt=len(new.prompt_token_ids),
                params=params,
                seed=default_seed if params.seed is None else params.seed,
            )
            self.slots[new.request_id] = slot
            prompt, blocks = tuple(new.prompt_token_ids), new.block_ids
            self.device.launch(
                self.state.fill_slot, slot.idx, prompt, blocks,
                writes=self.state.all, site="fill_slot",
            )  # fmt: skip

    def _prompt_rows(self, rows: Sequence[ScheduledRequest]) -> list[int]:
        """Rows of the flat batch that are of a prompt."""
        found: list[int] = []
        first = 0
        for row in rows:
            left = self.slots[row.request_id].num_prompt - row.start
            found += range(first, first + max(0, min(row.num_tokens, left)))
            first += row.num_tokens
        return found

    def _build_context(
        self, batch: Gathered, num_tokens: tuple[int, ...], seq_lens: tuple[int, ...]
    ) -> AttentionContext:
        return build_context(
            batch.positions,
            batch.block_table,
            num_tokens=num_tokens,
            seq_lens=seq_lens,
            block_size=self.config.block_size,
            window=self.model.shape.window,
            dtype=self.kv_caches[0].dtype,
        )

    def _sampling_row(self, row: ScheduledRequest) -> SamplingRow:
        slot = self.slots[row.request_id]
        position = row.start + row.num_tokens - slot.num_prompt
        return SamplingRow(params=slot.params, seed=slot.seed, position=position)

    def _host_table(self, num_rows: int, width: int) -> torch.Tensor:
        """Part of the host buffer, `[num_rows, width]`; the buffer grows with the width."""
        if self.output_buffer.numel() < num_rows * width:
            size = (self.config.max_num_seqs * width,)
            self.output_buffer = self.device.empty(
                size, torch.float64, space=self.output_space, kind="output"
            )
        return self.output_buffer[: num_rows * width].view(num_rows, width)

    def _copy_back(self, table: torch.Tensor, packed: Pending[torch.Tensor]) -> None:
        self.output_stream.wait_stream(self.device.current_stream())
        with self.device.stream(self.output_stream):
            self.device.copy_async(table, packed, site="output")
            self.output_event.record()


def sample_and_store(
    state: DeviceState, slots: Sequence[int], logits: torch.Tensor, sampling: list[SamplingRow]
) -> torch.Tensor:
    """Work: sample, append to the device's state, and return one packed tensor."""
    sampled = sample(logits, sampling)
    state.store(slots, sampled.token_ids)
    return pack(sampled)
