"""The plugin's pure parts: marks of a cell, the text of a failure, what a control must give."""

from dataclasses import replace

import pytest

from harness.core import (
    ComparisonErrored,
    ComparisonFailed,
    Finding,
    PlannedCase,
    RunKey,
    Setting,
    Verdict,
    Waive,
)
from harness.judge import conclude
from harness.plan import build_pair
from harness.plugin import _marks, check_outcome, explain, judge_outcome, run_guards
from harness.settings import load_model, load_workload
from tests.builders import NONE, PREFETCH, UVA, build_case, build_result


def result(verdict, role="case"):
    word = Finding(judge="tokens", verdict=verdict, summary="token 3 differs")
    return build_result(build_case(UVA, role=role), [word])


@pytest.mark.parametrize(
    ("offload", "runner", "marks"),
    [
        (UVA, "v1", ["offload", "runner_v1", "uva"]),
        (PREFETCH, "v2", ["offload", "runner_v2", "prefetch"]),
        (NONE, None, ["offload"]),
    ],
)
def test_marks_follow_the_target(offload, runner, marks):
    case = build_case(offload, runner=runner)
    key = RunKey(setting=case.target, workload=case.workload)

    assert marks == _marks(PlannedCase(case=case, baseline_key=key, target_key=key))


def test_a_control_that_fails_is_well_and_one_that_passes_is_not():
    assert Verdict.FAIL is judge_outcome(result(Verdict.FAIL, role="control")).verdict

    with pytest.raises(
        ComparisonErrored, match=r"gave PASS, not FAIL .*: this session proves nothing"
    ):
        judge_outcome(result(Verdict.PASS, role="control"))


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS])
def test_a_null_case_that_is_not_exact_fails_and_never_skips(verdict):
    with pytest.raises(ComparisonErrored, match=f"null case gave {verdict.value}, not PASS"):
        judge_outcome(result(verdict, role="null"))


@pytest.mark.parametrize(
    ("role", "verdict"), [("null", Verdict.UNSUPPORTED), ("control", Verdict.PASS)]
)
def test_a_pass_needs_guards_that_behave(role, verdict):
    right = [result(Verdict.PASS, role="null"), result(Verdict.FAIL, role="control")]
    passed = result(Verdict.PASS)
    assert passed is judge_outcome(passed, right)

    with pytest.raises(ComparisonErrored, match=f"the {role} case gave {verdict.value}"):
        judge_outcome(passed, [*right, result(verdict, role=role)])
    with pytest.raises(pytest.skip.Exception):
        judge_outcome(result(Verdict.UNSUPPORTED), [result(verdict, role=role)])


def test_a_session_does_not_end_well_where_a_guard_is_not_right():
    passed, bad = result(Verdict.PASS), result(Verdict.PASS, role="control")
    check_outcome([passed], conclude([passed]))

    with pytest.raises(ComparisonErrored, match="was not caught"):
        check_outcome([passed, bad], conclude([passed, bad]))


def test_guards_are_run_once_for_each_baseline_and_one_fault_for_each_engine():
    work = load_workload("short", load_model("tiny-llama"))
    pairs = [
        build_pair(base, replace(base, offload=offload), work)
        for base in (Setting(runner="v1"), Setting(runner="v2"))
        for offload in (UVA, PREFETCH)
    ]
    made = []

    class Scripted:
        results = made

        def compare_once(self, planned):
            found = [r for r in made if r.case == planned.case]
            verdict = Verdict.PASS if planned.case.role == "null" else Verdict.FAIL
            if not found:
                made.append(build_result(planned.case, [Finding(
                    judge="tokens", verdict=verdict, summary="x")]))  # fmt: skip
            return (found or made)[-1]

    for pair in pairs:
        assert all(guard.behaved for guard in run_guards(Scripted(), pair))

    assert ["null", "control", "null"] == [r.case.role for r in made]
    other = [replace(s, release="0.28", python="/p") for s in (pairs[0].case.baseline,
                                                               pairs[0].case.target)]  # fmt: skip
    run_guards(Scripted(), build_pair(*other, pairs[0].case.workload))
    assert ["null", "control"] == [r.case.role for r in made[3:]]


def test_unsupported_skips_with_its_reason():
    with pytest.raises(pytest.skip.Exception, match="token 3 differs"):
        judge_outcome(result(Verdict.UNSUPPORTED))


def test_a_failure_shows_every_finding_and_the_command():
    with pytest.raises(ComparisonFailed) as raised:
        judge_outcome(result(Verdict.FAIL))

    lines = explain(raised.value).splitlines()
    assert lines[0].startswith("FAIL: toy/")
    assert "  FAIL        tokens     token 3 differs" == lines[1]
    assert "  run it again: harness run --cell x" == lines[2]


def test_a_cell_that_is_red_as_waived_is_an_expected_failure():
    waive = Waive(cell="uva", verdict="FAIL", reason="a known defect", expires="2099-01-01")
    found = result(Verdict.FAIL)
    found = replace(found, case=replace(found.case, waive=waive))

    with pytest.raises(pytest.xfail.Exception, match="FAIL, waived: a known defect"):
        judge_outcome(found)
