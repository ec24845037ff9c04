"""A step that claims an update must change something, or what follows proves no update."""

from dataclasses import replace

import pytest

from harness.core import IntegrityTrace, Step, Verdict, WeightReads
from harness.judge.tokens import judge_tokens
from harness.judge.updates import unproven_update
from tests.builders import ANSWERS, baseline_run, build_case, build_output, target_run

CHANGED = Step(kind="reload_weights", args={"path": "other", "label": "changed"})
SAME = Step(kind="reload_weights", args={"path": "toy", "label": "same"})
PATCH = Step(kind="apply_sparse_weight_patches", args={"seed": 1, "num_values": 4, "params": []})
OTHER = ((30, 31, 32, 33), (40, 41, 42, 43))


def build(step, *, after=ANSWERS, digests=None):
    """A case of generate, `step`, generate, and its two runs; both sides answer alike."""
    case = build_case()
    case = replace(case, workload=replace(case.workload, steps=(Step(), step, Step())))
    outputs = [
        build_output(i, answer, step_idx=step_idx)
        for step_idx, answers in ((0, ANSWERS), (2, after))
        for i, answer in enumerate(answers)
    ]
    runs = (baseline_run(case, outputs=outputs), target_run(case, outputs=outputs))
    return case, *(with_digests(run, digests) for run in runs)


def with_digests(run, digests):
    if digests is None:
        return run
    probes = tuple(
        replace(run.probe, step_idx=step_idx, integrity=trace(digest))
        for step_idx, digest in enumerate(digests)
    )
    return replace(run, step_probes=probes)


def trace(digest):
    reads = WeightReads(name="embed", layer_idx=None, expected=digest, digests={digest: 1})
    return IntegrityTrace(mode="rest", num_reads=1, num_hashed=1, reads=(reads,))


@pytest.mark.parametrize(("step", "says"), [(CHANGED, "same weights"), (PATCH, "no weight")])
def test_equal_answers_around_an_update_prove_none(step, says):
    found = judge_tokens(*build(step))

    assert found.verdict is Verdict.VACUOUS
    assert says in found.summary
    assert f"step 1 ({step.name})" in found.summary


def test_other_answers_after_it_are_an_update():
    assert judge_tokens(*build(CHANGED, after=OTHER)).verdict is Verdict.PASS


def test_digests_speak_before_answers():
    case, baseline, _ = build(CHANGED, digests=("a", "b", "b"))
    assert unproven_update(case, baseline) == ""
    case, baseline, _ = build(CHANGED, after=OTHER, digests=("a", "a", "a"))
    assert "proves no update" in unproven_update(case, baseline)


def unknown(run, *, name, digests):
    """The run with one more parameter, which no checkpoint has, read as `digests` by step."""
    param = replace(run.probe.params[0], name=name)
    probes = []
    for probe, digest in zip(run.step_probes, digests, strict=True):
        read = WeightReads(
            name=name, layer_idx=0, expected=digest, digests={digest: 1}, is_first_read=True
        )
        whole = replace(probe.integrity, reads=(*probe.integrity.reads, read))
        probes.append(replace(probe, params=(*probe.params, param), integrity=whole))
    return replace(run, step_probes=tuple(probes))


@pytest.mark.parametrize(
    ("step", "name", "digests", "is_proven"),
    [
        (CHANGED, "l.0.weight_packed", ("p", "q", "q"), True),
        (CHANGED, "l.0.weight_packed", ("p", "p", "p"), False),
        (CHANGED, "l.0.weight_shape", ("p", "p", "p"), True),
        (PATCH, "l.0.weight_packed", ("p", "p", "p"), True),
    ],
)
def test_what_no_checkpoint_has_must_be_other_bytes_after_an_update(step, name, digests, is_proven):
    """Its first read after each step is all it is held against, on both sides."""
    case, baseline, _ = build(step, after=OTHER, digests=("a", "b", "b"))
    reason = unproven_update(case, unknown(baseline, name=name, digests=digests))

    wanted = f"{name} is in no checkpoint, and step 1 ({step.name}) left it as it was"
    assert reason == ("" if is_proven else wanted)


def test_a_reload_that_claims_no_update_may_change_nothing():
    assert judge_tokens(*build(SAME)).verdict is Verdict.PASS


def test_sides_that_differ_fail_whatever_the_update_was():
    case, baseline, target = build(CHANGED)
    outputs = (replace(target.outputs[0], token_ids=(10, 11, 12, 99)), *target.outputs[1:])

    assert judge_tokens(case, baseline, replace(target, outputs=outputs)).verdict is Verdict.FAIL
