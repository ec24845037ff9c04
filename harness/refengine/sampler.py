"""From logits to tokens: greedy or seeded, with log-probabilities of the raw distribution.

A sampled request needs one uniform number a token, drawn on the host from (seed, position), so
an answer depends on neither batch nor runner nor device.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .sampling_params import SamplingParams
from .scheduler import SampledToken


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """What the sampler must know of one row."""

    params: SamplingParams
    seed: int | str
    position: int
    """Index of the token being sampled, within its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """Tensors of one step, a row for each sampled token; logprobs None when nobody asks."""

    token_ids: torch.Tensor
    """int64 `[rows]`."""
    chosen: torch.Tensor | None = None
    """float32 `[rows]`."""
    top_token_ids: torch.Tensor | None = None
    """int64 `[rows, n]`, best first; n is the largest asked for in the step."""
    top: torch.Tensor | None = None
    """float32 `[rows, n]`."""


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SamplerOutput:
    """Choose one token for each row.

    Args:
        logits: `[rows, vocab]`, any float dtype.
        rows: one for each row of `logits`.
    """
    logits = logits.float()
    token_ids = logits.argmax(dim=-1)
    for i, row in enumerate(rows):
        if row.params.temperature > 0:
            token_ids[i] = _draw(logits[i], row)
    num_top = num_logprobs(rows)
    if num_top is None:
        return SamplerOutput(token_ids=token_ids)
    logprobs = logits.log_softmax(dim=-1)
    top, top_token_ids = logprobs.topk(num_top, dim=-1)
    chosen = logprobs.gather(-1, token_ids[:, None])[:, 0]
    return SamplerOutput(token_ids=token_ids, chosen=chosen, top_token_ids=top_token_ids, top=top)


def num_logprobs(rows: Sequence[SamplingRow]) -> int | None:
    """Largest number of log-probabilities asked for, None when nobody asks."""
    wanted = [row.params.logprobs for row in rows if row.params.logprobs is not None]
    return max(wanted) if wanted else None


def to_tokens(output: SamplerOutput, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Host objects from host tensors, each with as many logprobs as its request asked for."""
    token_ids = output.token_ids.tolist()
    if output.chosen is None or output.top_token_ids is None or output.top is None:
        return [SampledToken(token_id=token_id) for token_id in token_ids]
    chosen, top = output.chosen.tolist(), output.top.tolist()
    top_token_ids = output.top_token_ids.tolist()
    tokens = []
    for i, row in enumerate(rows):
        n = row.params.logprobs
        if n is None:
            tokens.append(SampledToken(token_id=token_ids[i]))
            continue
        tokens.append(
            SampledToken(
                token_id=token_ids[i],
                logprob=chosen[i],
                top_token_ids=top_token_ids[i][:n],
                top_logprobs=top[i][:n],
            )
        )
    return tokens


def _draw(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """Inverse of the cumulative distribution, most likely token first."""
    probs, order = (logits / row.params.temperature).softmax(dim=-1).sort(descending=True)
    cumulative = probs.cumsum(dim=-1)
    if row.params.top_p < 1:
        keep = cumulative - probs < row.params.top_p
        cumulative = (probs * keep).cumsum(dim=-1)
    uniform = random.Random(f"{row.seed}:{row.position}").random()
    index = (cumulative < uniform * cumulative[-1]).sum().clamp(max=len(order) - 1)
    return order[index]
