"""A session that asks for both runners and proves one of them to have run is an error."""

from dataclasses import replace

import pytest

from harness.core import ExitCode, RunStatus
from harness.judge import conclude, judge_case
from harness.judge.runners import live_runners, missing_runner
from tests.builders import (
    UVA,
    baseline_run,
    build_case,
    build_null_case,
    build_result,
    failed_run,
    target_run,
)


def judged(runner, *, live=None, **changes):
    case = build_case(UVA, runner=runner, **changes)
    sides = [baseline_run(case), target_run(case)]
    live = live or runner
    sides = [replace(run, probe=replace(run.probe, runner=live)) for run in sides]
    return build_result(case, judge_case(case, *sides))


def refused(runner):
    case = build_case(UVA, runner=runner)
    bad = failed_run(case, RunStatus.UNSUPPORTED, "no such runner here")
    return build_result(case, judge_case(case, baseline_run(case), bad))


def test_both_that_ran_are_enough():
    results = [judged("v1"), judged("v2")]

    assert missing_runner(results) == ""
    assert set(live_runners(results[1])) == {"v2"}
    assert conclude(results, controls=False).exit_code == ExitCode.PASS


@pytest.mark.parametrize(
    "never",
    [refused("v2"), judged("v2", live="v1"), judged("v2", judges=("placement", "tokens"))],
    ids=["refused", "another-was-live", "effect-not-asked"],
)
def test_v2_that_was_asked_for_and_never_ran_is_an_error_in_one_line(never):
    outcome = conclude([judged("v1"), never], controls=False)

    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith(
        "Both runners were asked for, but no run was proven to be V2: nothing here speaks of it."
    )


def test_a_session_of_one_runner_owes_nothing():
    assert missing_runner([judged("v1"), judged("v1")]) == ""


def test_controls_do_not_count_as_having_run():
    null = build_null_case(runner="v2")
    ran = build_result(null, judge_case(null, baseline_run(null), target_run(null)))

    assert "V2" in missing_runner([judged("v1"), refused("v2"), ran])


def test_a_failure_stays_a_failure():
    case = build_case(UVA, runner="v1")
    target = target_run(case)
    outputs = (replace(target.outputs[0], token_ids=(10, 11, 12, 99)), *target.outputs[1:])
    findings = judge_case(case, baseline_run(case), replace(target, outputs=outputs))
    wrong = build_result(case, findings)

    assert conclude([wrong, refused("v2")], controls=False).exit_code == ExitCode.FAIL
