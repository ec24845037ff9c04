"""Did a step that claims to bring other weights bring any? If not, it proves no update."""

from __future__ import annotations

from harness.core import Case, ProbeSnapshot, Run, Step

SAME_WEIGHTS = "a reload of the same weights proves no update"
FIXED = ("weight_shape",)
"""Ends of names of parameters that are the same in every checkpoint of a model."""
SAME_PATCH = "a patch that changes no weight proves no update"


def unproven_update(case: Case, baseline: Run) -> str:
    """Why a step of the workload that claims an update is none; empty where every one is.

    A reload labelled `changed` and a sparse patch claim one. Told from what the baseline's weights
    were to be before and after it, where their digests are known, else from its answers.
    """
    for step_idx, step in enumerate(case.workload.steps):
        if not claims_update(step):
            continue
        if _changes_nothing(case, baseline, step_idx):
            reason = SAME_PATCH if step.kind == "apply_sparse_weight_patches" else SAME_WEIGHTS
            return f"{reason}: step {step_idx} ({step.name})"
        if name := _unknown_unchanged(baseline, step_idx, step):
            return (
                f"{name} is in no checkpoint, and step {step_idx} ({step.name}) left it as it was"
            )
    return ""


def claims_update(step: Step) -> bool:
    """Whether other weights are said to be in effect after a step."""
    is_changed = step.kind == "reload_weights" and step.args.get("label") == "changed"
    return is_changed or step.kind == "apply_sparse_weight_patches"


def _changes_nothing(case: Case, run: Run, step_idx: int) -> bool:
    digests = _digests(run)
    before, after = digests.get(step_idx - 1), digests.get(step_idx)
    if before and after:
        common = before.keys() & after.keys()
        return bool(common) and all(before[name] == after[name] for name in common)
    generates = [i for i, step in enumerate(case.workload.steps) if step.kind == "generate"]
    earlier = [i for i in generates if i < step_idx]
    later = [i for i in generates if i > step_idx]
    if not earlier or not later:
        return False
    first, second = (_answers(run, idx) for idx in (earlier[-1], later[0]))
    return bool(first) and first == second


def _unknown_unchanged(run: Run, step_idx: int, step: Step) -> str:
    """A parameter that a step must have written, has the same bytes after it, and no checkpoint.

    What no checkpoint holds is held against its own first read after each step, which cannot tell
    old weights from new ones.
    """
    before = _digests(run).get(step_idx - 1, {})
    named = step.args.get("params")
    for probe in (*run.step_probes, *run.step_rank_probes):
        if probe.step_idx != step_idx or probe.integrity is None:
            continue
        params = {param.name for param in probe.params if not param.name.endswith(FIXED)}
        for reads in probe.integrity.reads:
            is_written = reads.name in params and (named is None or reads.name in named)
            is_same = before.get((probe.rank, reads.name)) == reads.expected
            if reads.is_first_read and is_written and is_same:
                return reads.name
    return ""


def _digests(run: Run) -> dict[int, dict[tuple[int, str], str]]:
    """Step -> what each parameter of each rank was held against after it."""
    digests: dict[int, dict[tuple[int, str], str]] = {}
    for probe in (*run.step_probes, *run.step_rank_probes):
        digests.setdefault(probe.step_idx, {}).update(_expected(probe))
    return digests


def _expected(probe: ProbeSnapshot) -> dict[tuple[int, str], str]:
    """Rank and parameter -> digest it was held against; none where nothing was hashed."""
    if probe.integrity is None:
        return {}
    reads = (each for each in probe.integrity.reads if each.expected)
    return {(probe.rank, each.name): each.expected for each in reads}


def _answers(run: Run, step_idx: int) -> list[object]:
    return [(o.token_ids, o.logprobs) for o in run.outputs if o.step_idx == step_idx]
