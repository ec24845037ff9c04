"""A lifecycle: what a judge says after each step, told as one word with the step's name in it."""

from __future__ import annotations

from dataclasses import replace

from harness.core import Case, Finding, Run, Verdict

from .base import WORST_FIRST, Judge, finding
from .sleep import judge_sleep

PER_STEP = ("effect", "placement", "integrity")
"""Judges asked after every step; the others speak of the whole run."""


def judge_lifecycle(
    name: str, judge: Judge, case: Case, baseline: Run, target: Run
) -> Finding | None:
    """The worst that a judge says of any step and of the end, first the earliest.

    Steps at which weights are put away are passed over: there is nothing to hold them against.
    VACUOUS when a step of either side was not probed.
    """
    at_end = judge(case, baseline, target)
    if name == "memory" and (asleep := judge_sleep(case, baseline, target)) is not None:
        return asleep if at_end is None or at_end.verdict is not Verdict.FAIL else at_end
    if name not in PER_STEP:
        return at_end
    found: list[Finding] = []
    for step_idx, step in enumerate(case.workload.steps):
        if step.kind == "engine_before":
            continue
        place = f"after step {step_idx} ({step.name})"
        pair = [_at(run, step_idx) for run in (baseline, target)]
        if pair[0] is None or pair[1] is None:
            summary = f"{place}: nothing was read inside a side"
            return finding(name, Verdict.VACUOUS, summary, {}, cause="a step was not probed")
        if any(run is not None and run.probe is not None and run.probe.is_asleep for run in pair):
            continue
        word = judge(case, pair[0], pair[1])
        if word is not None and word.verdict is not Verdict.PASS:
            found.append(replace(word, summary=f"{place}: {word.summary}"))
    if at_end is not None:
        found.append(at_end)
    return min(found, key=lambda word: WORST_FIRST.index(word.verdict), default=None)


def _at(run: Run, step_idx: int) -> Run | None:
    """The run as it was after a step."""
    for probe in run.step_probes:
        if probe.step_idx == step_idx:
            further = (each for each in run.step_rank_probes if each.step_idx == step_idx)
            return replace(run, probe=probe, rank_probes=tuple(further))
    return None
