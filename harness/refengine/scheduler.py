"""Which requests compute how many tokens in the next step; knows nothing of models or devices.

A request owns all the blocks it can ever need from admission to its end, so none is ever
preempted. Rows of one token stand first in a step, chunks of prompts behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .config import EngineConfig, check
from .kv_cache import BlockPool
from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Natural-log probabilities of one answer, a row for each generated token."""

    chosen: list[float]
    top_token_ids: list[list[int]]
    top: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """What the sampler says of one row; logprobs are None when not asked for."""

    token_id: int
    logprob: float | None = None
    top_token_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Request:
    """One request while the engine knows it."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: tuple[int, ...] = ()
    output: list[SampledToken] = field(default_factory=list)
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    finish_reason: str | None = None
    abort_at_end: bool = False
    """It is aborted while its last step runs, as by a client that goes away then."""

    @property
    def num_tokens(self) -> int:
        """Prompt tokens and generated tokens so far."""
        return len(self.prompt_token_ids) + len(self.output)

    @property
    def logprobs(self) -> Logprobs | None:
        """Log-probabilities of the output so far, if asked for."""
        if self.sampling_params.logprobs is None:
            return None
        return Logprobs(
            chosen=[token.logprob or 0.0 for token in self.output],
            top_token_ids=[token.top_token_ids for token in self.output],
            top=[token.top_logprobs for token in self.output],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """What a runner must learn of a request once."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """One row of a step: tokens `start .. start + num_tokens` of a request are computed."""

    request_id: str
    start: int
    num_tokens: int
    samples: bool
    """The row reaches the last known token, so the next one is sampled from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """One step for a model runner."""

    rows: tuple[ScheduledRequest, ...] = ()
    new: tuple[NewRequest, ...] = ()
    finished: tuple[str, ...] = ()
    """Requests that ended since the last step; a runner forgets them."""


class Scheduler:
    """First come, first served, within `max_num_seqs` and `max_num_batched_tokens`."""

    def __init__(self, config: EngineConfig, blocks: BlockPool) -> None:
        self.config = config
        self.blocks = blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._finished: list[str] = []

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, or a runner has not heard that one ended."""
        return bool(self.waiting or self.running or self._finished)

    def add(self, request: Request) -> None:
        """Queue a request; see `check_fits` for refusals."""
        self.check_fits(request)
        self.waiting.append(request)

    def check_fits(self, request: Request) -> None:
        """Refuse a request that can never run.

        Raises:
            ConfigError: it is empty, too long, or larger than the KV cache.
        """
        num_prompt, limit = len(request.prompt_token_ids), self.config.model_len
        where = f"request {request.request_id!r}"
        check(num_prompt >= 1, f"{where} has an empty prompt: give at least one token")
        check(
            num_prompt < limit,
            f"{where} has {num_prompt} prompt tokens; at most {limit - 1} fit "
            f"max_model_len={limit}",
        )
        needed, usable = self.blocks.blocks_for(self._max_tokens(request)), self.blocks.num_usable
        check(
            needed <= usable,
            f"{where} needs {needed} KV blocks, the cache has {usable}: raise "
            "kv_cache_memory_bytes or lower max_tokens",
        )

    def schedule(self) -> SchedulerOutput:
        """Choose the rows of the next step and admit what fits."""
        budget, rows, new = self.config.max_num_batched_tokens, [], []
        for request in self.running:
            if budget:
                rows.append(self._row(request, budget))
                budget -= rows[-1].num_tokens
        while self.waiting and budget and len(self.running) < self.config.max_num_seqs:
            blocks = self.blocks.allocate(self._max_tokens(self.waiting[0]))
            if blocks is None:
                break
            request = self.waiting.popleft()
            request.block_ids = blocks
            self.running.append(request)
            rows.append(self._row(request, budget))
            budget -= rows[-1].num_tokens
            new.append(
                NewRequest(
                    request_id=request.request_id,
                    prompt_token_ids=request.prompt_token_ids,
                    sampling_params=request.sampling_params,
                    block_ids=blocks,
                )
            )
        rows.sort(key=lambda row: row.num_tokens > 1)
        finished, self._finished = tuple(self._finished), []
        return SchedulerOutput(rows=tuple(rows), new=tuple(new), finished=finished)

    def update(self, step: SchedulerOutput, sampled: Mapping[str, SampledToken]) -> list[Request]:
        """Take a step's sampled tokens in; return the requests that ended with it."""
        by_id = {request.request_id: request for request in self.running}
        for row in step.rows:
            request = by_id.get(row.request_id)
            if request is None:
                continue  # it was aborted while the step ran
            request.num_computed_tokens += row.num_tokens
            if row.samples:
                token = sampled[row.request_id]
                request.output.append(token)
                request.finish_reason = self._finish_reason(request, token, request.num_tokens)
        ended = [request for request in self.running if request.finish_reason]
        for request in ended:
            self.running.remove(request)
            self._release(request)
        return ended

    def ending(self, step: SchedulerOutput, sampled: Mapping[str, SampledToken]) -> list[Request]:
        """Requests whose answer ends with a step that was run and is not taken in yet."""
        samples = {row.request_id for row in step.rows if row.samples}
        return [
            request
            for request in self.running
            if request.request_id in samples
            and self._finish_reason(request, sampled[request.request_id], request.num_tokens + 1)
        ]

    def abort(self, request_id: str) -> Request | None:
        """End a request at once, also while a step with it runs, whose token is dropped then.

        Returns:
            The request with its answer so far; None if it is not known, or ended before.
        """
        for queue in (self.running, self.waiting):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    request.finish_reason = "abort"
                    if queue is self.running:
                        self._release(request)
                    return request
        return None

    def drop_all(self) -> None:
        """Forget every request; the runner must forget them too."""
        for request in self.running:
            self.blocks.free(request.block_ids)
        self.running.clear()
        self.waiting.clear()
        self._finished.clear()

    def _release(self, request: Request) -> None:
        self.blocks.free(request.block_ids)
        self._finished.append(request.request_id)

    def _row(self, request: Request, budget: int) -> ScheduledRequest:
        left = request.num_tokens - request.num_computed_tokens
        num_tokens = min(left, budget)
        return ScheduledRequest(
            request_id=request.request_id,
            start=request.num_computed_tokens,
            num_tokens=num_tokens,
            samples=num_tokens == left,
        )

    def _max_tokens(self, request: Request) -> int:
        wanted = len(request.prompt_token_ids) + request.sampling_params.max_tokens
        return min(wanted, self.config.model_len)

    def _finish_reason(self, request: Request, token: SampledToken, num_tokens: int) -> str | None:
        """Why an answer ends with `token`, which makes it `num_tokens` with its prompt."""
        params, token_id = request.sampling_params, token.token_id
        if token_id in params.stop_token_ids:
            return "stop"
        if not params.ignore_eos and token_id in self.config.eos_token_ids:
            return "stop"
        done = num_tokens - len(request.prompt_token_ids) >= params.max_tokens
        return "length" if done or num_tokens >= self.config.model_len else None
