"""Are the answers equal, token for token, as far as the case's tier asks?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.core import (
    Case,
    Divergence,
    Dtype,
    Finding,
    Json,
    RequestOutput,
    Run,
    Tier,
    Verdict,
)

from .answers import OTHER_PROMPT, AnswerPair, lacking, misled_target, nothing_compared
from .base import finding
from .logprobs import (
    MOVED,
    NEAR_TIE,
    Margin,
    has_nan,
    largest_movement,
    logprob_at,
    margin_to,
    runner_up_margin,
)
from .updates import unproven_update

MAX_STRIPS = 8
"""Differing answers kept as evidence."""
AROUND = 16
"""Positions kept on either side of a first difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair(AnswerPair):
    dtype: Dtype

    @property
    def num_common(self) -> int:
        return min(len(self.baseline.token_ids), len(self.target.token_ids))

    @property
    def first_idx(self) -> int | None:
        """First differing position, a missing tail included; None when equal."""
        a, b = self.baseline.token_ids, self.target.token_ids
        common = self.num_common
        differing = next((i for i in range(common) if a[i] != b[i]), common)
        return None if differing == common and len(a) == len(b) else differing

    @property
    def tokens_at(self) -> tuple[int, int]:
        """Both token ids at the first difference, -1 where an answer has ended."""
        idx = self.first_idx or 0
        a, b = self.baseline.token_ids[idx : idx + 1], self.target.token_ids[idx : idx + 1]
        return (a[0] if a else -1), (b[0] if b else -1)

    @property
    def margin(self) -> Margin | None:
        """The baseline's margin at the first difference."""
        return margin_to(self.baseline, self.first_idx or 0, self.tokens_at[1])

    @property
    def is_near_tie(self) -> bool:
        return self.margin is not None and self.margin.is_near_tie(self.dtype)

    @property
    def movement(self) -> float:
        stop = self.num_common if self.first_idx is None else self.first_idx
        return largest_movement(self.baseline, self.target, stop)


def judge_tokens(case: Case, baseline: Run, target: Run) -> Finding:
    """Compare every answer of two runs.

    EXACT: any differing token fails, and so do equal tokens whose log-probabilities moved by more
    than rounding explains (`logprobs.MOVED`). LOGPROB: a first difference passes at a near-tie,
    with log-probabilities before it within `logprobs.NEAR_TIE`; what follows it is not compared.
    Either tier: the target fails when it alone was asked another prompt than the workload's,
    answers with another number of tokens than asked, or keeps no log-probabilities.
    VACUOUS: sampling instead of greedy, no common output, empty answers, other prompts, unanswered
    prompts, not-a-number in the baseline, or a difference under LOGPROB with no log-probabilities
    to weigh it by; and equal answers that are not as long as asked, or lack log-probabilities, or
    follow an update that changes no weight.
    """
    if len(baseline.outputs) != len(target.outputs) and baseline.outputs and target.outputs:
        summary = (
            f"the baseline answered {len(baseline.outputs)} requests, "
            f"the target {len(target.outputs)}"
        )
        cause = "the sides answered different numbers of requests"
        return finding("tokens", Verdict.FAIL, summary, {}, cause=cause)
    pairs = _pair_up(baseline.outputs, target.outputs, case.workload.model.dtype)
    if reason := misled_target(case, pairs):
        return finding("tokens", Verdict.FAIL, reason, {"num_tokens": 0}, cause=OTHER_PROMPT)
    if reason := _sampled(case) or nothing_compared(case, pairs):
        summary = f"{reason}: nothing was compared"
        return finding("tokens", Verdict.VACUOUS, summary, {"num_tokens": 0}, cause=reason)
    differing = [p for p in pairs if p.first_idx is not None]
    weighed = any(p.baseline.logprobs and p.target.logprobs for p in pairs)
    evidence: dict[str, Json] = {
        "tier": case.tier.value,
        "num_requests": len(pairs),
        "num_tokens": sum(p.num_common for p in pairs),
        "num_differing": len(differing),
        "max_logprob_difference": _finite(max(p.movement for p in pairs)) if weighed else None,
        "near_tie_nats": NEAR_TIE[case.workload.model.dtype],
        "strips": [_strip(p) for p in differing[:MAX_STRIPS]],
    }
    judge = _judge_exact if case.tier is Tier.EXACT else _judge_close
    found = judge(pairs, differing, evidence)
    if found.verdict is Verdict.PASS and (lack := lacking(case, pairs)) is not None:
        return finding("tokens", lack.verdict, lack.text, evidence, cause=lack.cause)
    if found.verdict is Verdict.PASS and (reason := unproven_update(case, baseline)):
        cause = reason.partition(":")[0]
        return finding("tokens", Verdict.VACUOUS, reason, evidence, cause=cause)
    return found


def _finite(number: float | None) -> float | None:
    """JSON has no infinity; None says that a side was not a number."""
    return number if number is not None and math.isfinite(number) else None


def _pair_up(
    left: Sequence[RequestOutput], right: Sequence[RequestOutput], dtype: Dtype
) -> list[_Pair]:
    """Match answers by step and request id, or by position where the ids have nothing in common."""
    by_key = {(o.step_idx, o.request_id): o for o in right}
    keys = [(o.step_idx, o.request_id) for o in left]
    if len(by_key) == len(right) and set(keys) == set(by_key):
        right = [by_key[key] for key in keys]
    return [
        _Pair(idx=i, baseline=a, target=b, dtype=dtype)
        for i, (a, b) in enumerate(zip(left, right, strict=False))
    ]


def _sampled(case: Case) -> str:
    temperature = case.workload.sampling_params.temperature
    return f"sampling at temperature {temperature:g}, not greedy" if temperature > 0 else ""


def _judge_exact(
    pairs: Sequence[_Pair], differing: Sequence[_Pair], evidence: dict[str, Json]
) -> Finding:
    if differing:
        return _difference(differing[0], differing, Verdict.FAIL, evidence)
    worst = max(pairs, key=lambda p: p.movement)
    if worst.movement > MOVED[worst.dtype]:
        summary = (
            f"every token is equal, but log-probabilities of request {worst.idx} moved by "
            f"{worst.movement:.3g} nats: the sides did not compute the same"
        )
        cause = "log-probabilities moved although every token is equal"
        return finding("tokens", Verdict.FAIL, summary, evidence, cause=cause)
    return finding("tokens", Verdict.PASS, _equal(evidence), evidence)


def _judge_close(
    pairs: Sequence[_Pair], differing: Sequence[_Pair], evidence: dict[str, Json]
) -> Finding:
    ended = [p for p in differing if -1 in p.tokens_at]
    unweighed = [p for p in differing if p.margin is None and p not in ended]
    apart = [p for p in differing if p.margin is not None and not p.is_near_tie]
    for failing in (ended, apart):
        if failing:
            return _difference(failing[0], differing, Verdict.FAIL, evidence)
    worst = max(pairs, key=lambda p: p.movement)
    if worst.movement > NEAR_TIE[worst.dtype]:
        summary = (
            f"log-probabilities of request {worst.idx} moved by {worst.movement:.3g} nats before "
            f"any difference; {NEAR_TIE[worst.dtype]:g} is allowed in {worst.dtype}"
        )
        cause = "log-probabilities moved more than allowed"
        return finding("tokens", Verdict.FAIL, summary, evidence, cause=cause)
    if unweighed:
        return _difference(unweighed[0], differing, Verdict.VACUOUS, evidence)
    if differing:
        return _difference(differing[0], differing, Verdict.PASS, evidence)
    return finding("tokens", Verdict.PASS, _equal(evidence), evidence)


def _equal(evidence: dict[str, Json]) -> str:
    moved = evidence["max_logprob_difference"]
    within = f"within {moved:.2g} nats" if moved is not None else "not kept"
    return (
        f"All {evidence['num_tokens']:,} tokens of {evidence['num_requests']} requests are equal "
        f"(log-probabilities {within})."
    )


def _difference(
    lead: _Pair, differing: Sequence[_Pair], verdict: Verdict, evidence: dict[str, Json]
) -> Finding:
    """A finding led by one first difference; its words fit the verdict given."""
    expected, actual = lead.tokens_at
    divergence = Divergence(
        request_idx=lead.idx,
        token_idx=lead.first_idx or 0,
        expected=expected,
        actual=actual,
        expected_logprob=_finite(logprob_at(lead.baseline, lead.first_idx or 0)),
        actual_logprob=_finite(logprob_at(lead.target, lead.first_idx or 0)),
        margin=_finite(lead.margin.value if lead.margin else None),
        margin_is_bound=lead.margin is not None and lead.margin.is_bound,
        near_tie=lead.is_near_tie,
        num_differing=len(differing),
    )
    cause = {
        Verdict.FAIL: "tokens differ",
        Verdict.VACUOUS: "tokens differ and no log-probabilities were kept to weigh it",
    }.get(verdict, "")
    made = finding("tokens", verdict, _describe(lead, differing, evidence), evidence, cause=cause)
    return replace(made, divergence=divergence)


def _describe(lead: _Pair, differing: Sequence[_Pair], evidence: dict[str, Json]) -> str:
    expected, actual = ("the end" if t < 0 else f"token {t}" for t in lead.tokens_at)
    margin = lead.margin
    if margin is None:
        preferred = "no margin is known"
    else:
        bound = "at least " if margin.is_bound else ""
        tie = "a near-tie" if lead.is_near_tie else "no near-tie"
        preferred = f"the baseline preferred its own by {bound}{margin.value:.3g} nats, {tie}"
    if has_nan(lead.target):
        preferred += "; the target's log-probabilities are not numbers"
    return (
        f"{len(differing)} of {evidence['num_requests']} answers differ: request {lead.idx} at "
        f"position {lead.first_idx}, expected {expected}, got {actual}; {preferred}."
    )


def _strip(pair: _Pair) -> Json:
    """Both answers around their first difference, with the baseline's runner-up margins."""
    first = pair.first_idx or 0
    start = max(0, first - AROUND)
    stop = min(max(len(pair.baseline.token_ids), len(pair.target.token_ids)), first + AROUND)
    return {
        "request_idx": pair.idx,
        "request_id": pair.baseline.request_id,
        "step_idx": pair.baseline.step_idx,
        "token_idx": first,
        "start_idx": start,
        "baseline": list(pair.baseline.token_ids[start:stop]),
        "target": list(pair.target.token_ids[start:stop]),
        "baseline_text": pair.baseline.text,
        "target_text": pair.target.text,
        "margins": [runner_up_margin(pair.baseline, i) for i in range(start, stop)],
        "near_tie": pair.is_near_tie,
    }
