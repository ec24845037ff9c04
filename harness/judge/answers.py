"""Were the sides asked what the workload asks, and did they answer all of it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core import Case, RequestOutput, Verdict

from .logprobs import has_nan

OTHER_PROMPT = "the target was asked another prompt than the workload's"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """The answers of both sides to one request."""

    idx: int
    """Position in the baseline's outputs."""
    baseline: RequestOutput
    target: RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What answers lack that are equal otherwise."""

    verdict: Verdict
    cause: str
    text: str


def misled_target(case: Case, pairs: Sequence[AnswerPair]) -> str:
    """The first request that only the target was asked otherwise than asked for; empty if none."""
    asked = _prompts(case, pairs)
    for pair in pairs:
        if pair.baseline.prompt_token_ids == asked[pair.idx] != pair.target.prompt_token_ids:
            return f"request {pair.idx}: {OTHER_PROMPT}"
    return ""


def nothing_compared(case: Case, pairs: Sequence[AnswerPair]) -> str:
    """Why comparing these answers would prove nothing; empty when it proves something."""
    if not pairs:
        return "no output was common to baseline and target"
    if reason := _asked_otherwise(case, pairs):
        return reason
    empty = [p.idx for p in pairs if not p.baseline.token_ids and not p.target.token_ids]
    if empty:
        every = "every answer is empty"
        return every if len(empty) == len(pairs) else f"the answer of request {empty[0]} is empty"
    steps = [s for s in case.workload.steps if s.kind == "generate"]
    num_asked = len(steps) * len(case.workload.prompt_token_ids)
    if len(pairs) < num_asked and not any(s.args for s in steps):
        return f"only {len(pairs)} of {num_asked} prompts were answered"
    if any(has_nan(p.baseline) for p in pairs):
        return "the baseline's log-probabilities are not numbers"
    return ""


def _asked_otherwise(case: Case, pairs: Sequence[AnswerPair]) -> str:
    asked = _prompts(case, pairs)
    for pair in pairs:
        if pair.baseline.prompt_token_ids != pair.target.prompt_token_ids:
            return f"request {pair.idx} was asked with different prompts"
        if pair.baseline.prompt_token_ids != asked[pair.idx]:
            return f"request {pair.idx} was asked another prompt than the workload's on both sides"
    return ""


def lacking(case: Case, pairs: Sequence[AnswerPair]) -> Lack | None:
    """What the first of equal answers lacks, a FAIL before a VACUOUS; None when nothing."""
    lacks = [lack for pair in pairs for lack in _lacks(case, pair)]
    return min(lacks, key=lambda lack: lack.verdict is not Verdict.FAIL, default=None)


def _lacks(case: Case, pair: AnswerPair) -> list[Lack]:
    params = case.workload.sampling_params
    sides = (pair.baseline, pair.target)
    lacks = []
    lengths = [len(output.token_ids) for output in sides]
    if params.ignore_eos and lengths != [params.max_tokens] * 2:
        cause = "answers are shorter than asked"
        if max(lengths) > params.max_tokens:
            cause = "answers are longer than asked"
        text = (
            f"{cause}: request {pair.idx} has {lengths[0]} tokens on the baseline and "
            f"{lengths[1]} on the target, {params.max_tokens} were asked for"
        )
        verdict = Verdict.FAIL if lengths[0] != lengths[1] else Verdict.VACUOUS
        lacks.append(Lack(verdict=verdict, cause=cause, text=text))
    if params.logprobs is not None and any(output.logprobs is None for output in sides):
        is_target = pair.baseline.logprobs is not None
        where = "the target" if is_target else "the baseline"
        if pair.target.logprobs is None and not is_target:
            where = "either side"
        cause = f"log-probabilities were asked for and not kept on {where}"
        verdict = Verdict.FAIL if is_target else Verdict.VACUOUS
        lacks.append(Lack(verdict=verdict, cause=cause, text=f"{cause}: request {pair.idx}"))
    return lacks


def _prompts(case: Case, pairs: Sequence[AnswerPair]) -> Mapping[int, tuple[int, ...]]:
    """The prompt asked for each pair, by its place within its step.

    A step with arguments of its own may ask what it wants, and is taken by the baseline's word.
    """
    prompts, asked = case.workload.prompt_token_ids, {}
    seen: dict[int, int] = {}
    for pair in pairs:
        step_idx = pair.baseline.step_idx
        number = seen[step_idx] = seen.get(step_idx, -1) + 1
        steps = case.workload.steps
        is_own = step_idx < len(steps) and bool(steps[step_idx].args)
        own = is_own or number >= len(prompts)
        asked[pair.idx] = pair.baseline.prompt_token_ids if own else prompts[number]
    return asked
