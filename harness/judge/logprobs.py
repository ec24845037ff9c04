"""What log-probabilities say at and before a difference: margins, near-ties, largest movement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.core import Dtype, RequestOutput

NEAR_TIE: Mapping[Dtype, float] = {"float32": 1e-3, "bfloat16": 0.125, "float16": 0.125}
"""Margin, nats, at or under which rounding alone may swap two tokens, and the tolerance before it.

float32: sums of some thousand products reordered move a logit by about 1e-5, with two decades to
spare. bfloat16 has 8 significant bits: a logit between 16 and 32 is known to 0.125. float16 has
11, but its sums overflow into the same order of error in long reductions."""

MOVED: Mapping[Dtype, float] = {"float32": 1e-2, "bfloat16": 0.25, "float16": 0.25}
"""Movement, nats, that no rounding explains under EXACT although every token is equal.

Ten times (in half precision: twice) the near-tie margin: a wrong weight that leaves the order of
tokens alone shows here and nowhere else. Less is reported and not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How much a side preferred its own token to another, nats."""

    value: float
    is_bound: bool
    """`value` is only a lower bound: the other token is outside the top-n."""

    def is_near_tie(self, dtype: Dtype) -> bool:
        """Whether rounding alone may have swapped the two; a bound never proves a tie."""
        return not self.is_bound and abs(self.value) <= NEAR_TIE[dtype]


def margin_to(output: RequestOutput, token_idx: int, other: int) -> Margin | None:
    """The margin of `output`'s token over `other` at one position; None without log-probabilities.

    Args:
        output: the side whose row is read.
        token_idx: position in its answer.
        other: the token id the other side chose; -1 when it chose none.
    """
    lp = output.logprobs
    if lp is None or token_idx >= len(lp.chosen) or other < 0 or not lp.top[token_idx]:
        return None
    row = dict(zip(lp.top_token_ids[token_idx], lp.top[token_idx], strict=True))
    own = lp.chosen[token_idx]
    if other in row:
        return Margin(value=own - row[other], is_bound=False)
    return Margin(value=own - min(row.values()), is_bound=True)


def runner_up_margin(output: RequestOutput, token_idx: int) -> float | None:
    """Margin of the best token over the second at one position, nats; None when not kept."""
    lp = output.logprobs
    if lp is None or token_idx >= len(lp.top) or len(lp.top[token_idx]) < 2:
        return None
    best = sorted(lp.top[token_idx], reverse=True)
    return best[0] - best[1]


def logprob_at(output: RequestOutput, token_idx: int) -> float | None:
    """Log-probability of the side's own token at one position, nats."""
    lp = output.logprobs
    return lp.chosen[token_idx] if lp is not None and token_idx < len(lp.chosen) else None


def largest_movement(baseline: RequestOutput, target: RequestOutput, stop: int) -> float:
    """Largest difference of chosen log-probabilities before position `stop`, nats.

    Not-a-number on one side is infinitely far from anything; 0 where either side kept none.
    """
    left, right = baseline.logprobs, target.logprobs
    if left is None or right is None:
        return 0.0
    pairs = zip(left.chosen[:stop], right.chosen[:stop], strict=False)
    return max((_distance(a, b) for a, b in pairs), default=0.0)


def _distance(a: float, b: float) -> float:
    if a == b:
        return 0.0
    return math.inf if math.isnan(a) or math.isnan(b) else abs(a - b)


def has_nan(output: RequestOutput) -> bool:
    """Whether any chosen log-probability is not a number."""
    return output.logprobs is not None and any(math.isnan(x) for x in output.logprobs.chosen)
