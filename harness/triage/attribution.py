"""Two settings that differ in several axes: with which one does the difference come?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.core import CaseResult, Finding, PlannedCase, Setting, Verdict, Workload

AXES = ("engine_args", "env", "python", "enforce_eager", "multiprocessing", "runner", "offload")
"""Order in which the axes are changed one by one; offload last, as it is what is asked about."""

Look = Callable[[PlannedCase], tuple[Finding, ...]]
PairUp = Callable[[Setting, Setting, Workload], PlannedCase]


def steps_between(baseline: Setting, target: Setting) -> list[tuple[str, Setting]]:
    """The settings on the way from baseline to target, one axis at a time.

    Returns:
        (axis, setting after changing it), the last equal to `target`; empty when at most one axis
        differs, since there is nothing to attribute then.
    """
    differing = baseline.differing_axes(target)
    axes = [axis for axis in AXES if axis in differing]
    if len(axes) < 2:
        return []
    steps, now = [], baseline
    for axis in axes:
        now = replace(now, **{axis: getattr(target, axis)})
        steps.append((axis, now))
    return steps


def attribute(
    baseline: Setting, target: Setting, workload: Workload, *, pair: PairUp, look: Look
) -> str | None:
    """Run the missing controls and name the first axis that changes the output.

    Args:
        baseline: the first setting.
        target: the second.
        workload: what both were asked.
        pair: plans a comparison.
        look: runs and judges one, without recording it.

    Returns:
        One sentence, or None when there is nothing to attribute.
    """
    now = baseline
    for axis, after in steps_between(baseline, target):
        findings = look(pair(now, after, workload))
        tokens = next((f for f in findings if f.judge == "tokens"), None)
        if tokens is None or tokens.verdict is not Verdict.PASS:
            said = tokens.summary if tokens else findings[0].summary
            return (
                f"the difference comes with {axis} ({now.setting_id} against "
                f"{after.setting_id}): {said}"
            )
        now = after
    return None


def attribute_results(results: Sequence[CaseResult], *, pair: PairUp, look: Look) -> dict[str, str]:
    """`attribute` every counted FAIL whose sides differ in two or more axes.

    Returns:
        Case id -> sentence, where there is one.
    """
    notes = {}
    for result in results:
        case = result.case
        if result.counts and result.verdict is Verdict.FAIL:
            note = attribute(case.baseline, case.target, case.workload, pair=pair, look=look)
            if note is not None:
                notes[case.case_id] = note
    return notes
