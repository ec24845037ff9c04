"""The plugin's pure parts: marks of a cell, the text of a failure, what a control must give."""

import pytest

from harness.core import (
    ComparisonErrored,
    ComparisonFailed,
    Finding,
    PlannedCase,
    RunKey,
    Verdict,
)
from harness.plugin import _marks, explain, judge_outcome
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

    with pytest.raises(ComparisonErrored, match="gave PASS, not FAIL: this session proves nothing"):
        judge_outcome(result(Verdict.PASS, role="control"))


def test_a_null_case_that_differs_fails():
    with pytest.raises(ComparisonFailed, match="token 3 differs"):
        judge_outcome(result(Verdict.FAIL, role="null"))


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
