"""Both answers side by side: a window at the first difference, and what the logits said there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core import CaseResult, Divergence, RequestOutput, Run

from .words import count

BEFORE = 6
"""Equal tokens kept before the first difference."""
WINDOW = 40
"""Positions shown of one differing answer."""
MAX_STRIPS = 8
"""Differing answers shown of one case."""
PLAIN_TOKENS = 5
"""Tokens of prompt 0 that a plain paired test looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripToken:
    """One position of two answers."""

    baseline: str
    target: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A window of one request's two answers."""

    label: str
    """Which prompt, and step where there are several."""
    note: str
    first_idx: int | None
    """Position of the first difference in the answer; None when the answers are equal."""
    start_idx: int
    """Position of the window's first token."""
    tokens: tuple[StripToken, ...]
    num_after: int
    """Positions after the window that are not shown."""
    common_text: str
    baseline_text: str
    target_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One token the two sides considered at the first difference."""

    token_id: int
    baseline: str
    target: str
    baseline_percent: float
    target_percent: float
    chosen_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMark:
    """One request in the overview: how much of it was equal before the first difference."""

    label: str
    equal_percent: float
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensView:
    """All that is shown of the outputs of one case."""

    headline: str
    marks: tuple[RequestMark, ...]
    strips: tuple[Strip, ...]
    num_hidden: int
    """Differing answers beyond `MAX_STRIPS`."""
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    idx: int
    baseline: RequestOutput
    target: RequestOutput

    @property
    def first_idx(self) -> int | None:
        """First differing position, a missing tail included."""
        a, b = self.baseline.token_ids, self.target.token_ids
        for idx, (left, right) in enumerate(zip(a, b, strict=False)):
            if left != right:
                return idx
        return None if len(a) == len(b) else min(len(a), len(b))

    @property
    def num_tokens(self) -> int:
        return max(len(self.baseline.token_ids), len(self.target.token_ids))


def plain_pair_is_equal(baseline: Run | None, target: Run | None) -> bool | None:
    """Whether a plain paired test passes: the first 5 tokens of prompt 0; None if it cannot run."""
    pairs = _pairs(baseline, target)
    if not pairs or not pairs[0].num_tokens:
        return None
    a, b = pairs[0].baseline.token_ids, pairs[0].target.token_ids
    return a[:PLAIN_TOKENS] == b[:PLAIN_TOKENS]


def view_tokens(result: CaseResult, baseline: Run | None, target: Run | None) -> TokensView | None:
    """Build the strips of one case; None when there are no two answers to show."""
    pairs = _pairs(baseline, target)
    if not pairs:
        return None
    differing = [p for p in pairs if p.first_idx is not None]
    several_steps = len({p.baseline.step_idx for p in pairs}) > 1
    shown = differing[:MAX_STRIPS] or pairs[:1]
    divergence = next((f.divergence for f in result.findings if f.divergence is not None), None)
    leading = _leading(pairs, differing, divergence)
    if leading is not None and leading in shown:
        shown = [leading, *(p for p in shown if p is not leading)]
    return TokensView(
        headline=_headline(pairs, differing, leading, divergence),
        marks=tuple(_mark(p, several_steps) for p in pairs),
        strips=tuple(_strip(p, several_steps) for p in shown),
        num_hidden=max(0, len(differing) - MAX_STRIPS),
        candidates=_candidates(leading) if leading is not None else (),
    )


def _pairs(baseline: Run | None, target: Run | None) -> list[_Pair]:
    """Answers of the two runs, matched as the judge matches them: by id, else by position."""
    if baseline is None or target is None:
        return []
    left, right = baseline.outputs, target.outputs
    by_key = {(o.step_idx, o.request_id): o for o in right}
    keys = [(o.step_idx, o.request_id) for o in left]
    if len(by_key) == len(right) and set(keys) == set(by_key):
        right = tuple(by_key[key] for key in keys)
    sides = zip(left, right, strict=False)
    return [_Pair(idx=i, baseline=a, target=b) for i, (a, b) in enumerate(sides)]


def _leading(
    pairs: Sequence[_Pair], differing: Sequence[_Pair], divergence: Divergence | None
) -> _Pair | None:
    """The pair the judge spoke of, else the first that differs."""
    if divergence is not None:
        for pair in pairs:
            if pair.idx == divergence.request_idx and pair.first_idx is not None:
                return pair
    return differing[0] if differing else None


def _headline(
    pairs: Sequence[_Pair],
    differing: Sequence[_Pair],
    leading: _Pair | None,
    divergence: Divergence | None,
) -> str:
    if leading is None:
        tokens = sum(p.num_tokens for p in pairs)
        return f"{count(len(pairs), 'answer')} equal, token for token ({count(tokens, 'token')})"
    text = f"{len(differing)} of {len(pairs)} answers differ; prompt {leading.idx} differs first "
    text += f"at token {leading.first_idx}"
    if divergence is None or divergence.margin is None or divergence.request_idx != leading.idx:
        return text
    bound = "at least " if divergence.margin_is_bound else ""
    tie = "a near-tie" if divergence.near_tie else "not a near-tie"
    return f"{text}, margin {bound}{divergence.margin:.3g} nats: {tie}"


def _label(pair: _Pair, several_steps: bool) -> str:
    step = f"step {pair.baseline.step_idx}, " if several_steps else ""
    return f"{step}prompt {pair.idx}"


def _mark(pair: _Pair, several_steps: bool) -> RequestMark:
    first = pair.first_idx
    label = _label(pair, several_steps)
    if first is None:
        return RequestMark(label=f"{label}: equal", equal_percent=100.0, differs=False)
    percent = 100 * first / max(1, pair.num_tokens)
    text = f"{label}: differs from token {first}"
    return RequestMark(label=text, equal_percent=round(percent, 1), differs=True)


def _strip(pair: _Pair, several_steps: bool) -> Strip:
    first, total = pair.first_idx, pair.num_tokens
    start = 0 if first is None else max(0, first - BEFORE)
    stop = total if first is None else min(total, start + WINDOW)
    common, left, right = _split_text(pair.baseline.text, pair.target.text)
    length = count(len(pair.baseline.prompt_token_ids), "prompt token")
    note = f"equal, {count(total, 'token')}" if first is None else f"differs from token {first}"
    return Strip(
        label=_label(pair, several_steps),
        note=f"{length}; {note}",
        first_idx=first,
        start_idx=start,
        tokens=tuple(_token(pair, i) for i in range(start, stop)),
        num_after=total - stop,
        common_text=common,
        baseline_text=left,
        target_text=right,
    )


def _token(pair: _Pair, idx: int) -> StripToken:
    a, b = pair.baseline.token_ids, pair.target.token_ids
    left = str(a[idx]) if idx < len(a) else "end"
    right = str(b[idx]) if idx < len(b) else "end"
    return StripToken(baseline=left, target=right, differs=left != right)


def _split_text(baseline: str | None, target: str | None) -> tuple[str, str, str]:
    """The common beginning of two texts and the two rests, cut back to a word's start."""
    if not baseline or not target:
        return "", baseline or "", target or ""
    if baseline == target:
        return baseline, "", ""
    pairs = zip(baseline, target, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(baseline), len(target)))
    same = baseline.rfind(" ", 0, same) + 1
    return baseline[:same], baseline[same:], target[same:]


def _candidates(pair: _Pair) -> tuple[Candidate, ...]:
    """Top candidates of both sides at the first difference, the baseline's order first."""
    idx = pair.first_idx
    assert idx is not None, "only differing answers have candidates"
    left, right = _top(pair.baseline, idx), _top(pair.target, idx)
    if not left or not right:
        return ()
    chosen = _token(pair, idx)
    rows = []
    for token_id in list(dict.fromkeys([*left, *right])):
        sides = (("baseline", chosen.baseline), ("target", chosen.target))
        rows.append(
            Candidate(
                token_id=token_id,
                baseline=_nats(left.get(token_id)),
                target=_nats(right.get(token_id)),
                baseline_percent=_percent(left.get(token_id)),
                target_percent=_percent(right.get(token_id)),
                chosen_by=" and ".join(n for n, picked in sides if picked == str(token_id)),
            )
        )
    return tuple(rows)


def _top(output: RequestOutput, idx: int) -> dict[int, float]:
    if output.logprobs is None or idx >= len(output.logprobs.top):
        return {}
    lp = output.logprobs
    found = dict(zip(lp.top_token_ids[idx], lp.top[idx], strict=False))
    return {**found, output.token_ids[idx]: lp.chosen[idx]}


def _nats(logprob: float | None) -> str:
    return "" if logprob is None else f"{logprob:.3f}"


def _percent(logprob: float | None) -> float:
    """Width of a probability's bar, percent; nothing for what is not a number."""
    if logprob is None or math.isnan(logprob):
        return 0.0
    return round(100 * math.exp(min(0.0, logprob)), 1)
