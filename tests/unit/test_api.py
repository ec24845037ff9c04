"""The functions a test calls: the pure ones, and how comparisons are planned."""

import pytest

from harness.api import (
    assert_result,
    check_logprobs_close,
    check_outputs_equal,
    plan_comparison,
)
from harness.core import (
    ComparisonErrored,
    ComparisonFailed,
    ComparisonUnsupported,
    ComparisonVacuous,
    Finding,
    Tier,
    Verdict,
)
from harness.settings import load_model, load_workload, parse_engine_args
from tests.builders import build_case, build_result

NAMES = {"name_0": "off", "name_1": "on"}
ERRORS = {
    Verdict.FAIL: ComparisonFailed,
    Verdict.VACUOUS: ComparisonVacuous,
    Verdict.UNSUPPORTED: ComparisonUnsupported,
    Verdict.ERROR: ComparisonErrored,
}


@pytest.mark.parametrize("verdict", ERRORS)
def test_every_verdict_but_pass_raises_an_assertion_error_with_the_result(verdict):
    result = build_result(build_case(), [Finding(judge="x", verdict=verdict, summary="why")])

    with pytest.raises(ERRORS[verdict], match=f"{verdict.value}: toy/.*: why") as raised:
        assert_result(result)

    assert isinstance(raised.value, AssertionError)
    assert raised.value.result is result


def test_a_pass_is_returned():
    result = build_result()

    assert result is assert_result(result)


def test_equal_outputs_pass_and_the_first_difference_is_named():
    same = [([1, 2, 3], "abc"), ([4], "d")]
    check_outputs_equal(outputs_0_lst=same, outputs_1_lst=iter(same), **NAMES)

    with pytest.raises(ComparisonFailed, match=r"prompt 1 differs at token 0: off gave \[4\]"):
        check_outputs_equal(outputs_0_lst=same, outputs_1_lst=[same[0], ([5], "e")], **NAMES)


def test_a_shorter_output_differs_where_it_ends():
    with pytest.raises(ComparisonFailed, match=r"at token 2: off gave \[3\].*on gave \[\]"):
        check_outputs_equal(outputs_0_lst=[([1, 2, 3], "")], outputs_1_lst=[([1, 2], "")], **NAMES)


@pytest.mark.parametrize("check", [check_outputs_equal, check_logprobs_close])
def test_nothing_to_compare_is_vacuous_and_unequal_numbers_are_an_error(check):
    with pytest.raises(ComparisonVacuous, match="nothing was compared"):
        check(outputs_0_lst=[], outputs_1_lst=[], **NAMES)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        check(outputs_0_lst=[([1], "", [{1: 0.0}])], outputs_1_lst=[], **NAMES)


def test_logprobs_allow_a_difference_among_each_others_candidates():
    left = [([1, 2, 9], "", [{1: -0.1}, {2: -0.7, 3: -0.7}, {9: -0.1}])]
    right = [([1, 3, 8], "", [{1: -0.1}, {3: -0.7, 2: -0.7}, {8: -0.1}])]

    check_logprobs_close(outputs_0_lst=left, outputs_1_lst=right, **NAMES)


@pytest.mark.parametrize("other", [{3: -0.1}, {3: -0.1, 4: -2.0}])
def test_logprobs_refuse_a_token_that_the_other_side_did_not_consider(other):
    left = [([1, 2], "", [{1: -0.1}, {2: -0.1, 3: -3.0}])]
    right = [([1, 3], "", [{1: -0.1}, other])]

    with pytest.raises(ComparisonFailed, match="prompt 0 differs at token 1 beyond a near-tie"):
        check_logprobs_close(outputs_0_lst=left, outputs_1_lst=right, **NAMES)


def plan(*targets, base=(), controls=True, tier=Tier.EXACT):
    settings = [parse_engine_args(list(args)) for args in (base, *targets)]
    workload = load_workload("short", load_model("tiny-llama"))
    return plan_comparison(settings, workload, tier=tier, controls=controls)


def test_null_case_and_planted_fault_come_before_the_pairs():
    roles = [p.case.role for p in plan(["--cpu-offload-gb", "1"], []).cases]

    assert ["null", "control", "case", "case"] == roles


def test_the_null_case_is_of_the_first_setting_whatever_it_offloads():
    null, control, _ = plan(["--offload-group-size", "2"], base=["--cpu-offload-gb", "1"]).cases

    assert "uva" == null.case.baseline.offload.resolved_backend
    assert null.case.baseline == null.case.target == control.case.baseline
    assert null.baseline_key != null.target_key
    assert "prefetch" == control.case.target.offload.resolved_backend


@pytest.mark.parametrize("base", [[], ["--cpu-offload-gb", "0.002"]], ids=["none", "offloading"])
def test_where_no_target_offloads_the_fault_is_planted_in_the_baseline(base):
    null, control, _ = plan([], base=base).cases

    assert ("null", "control") == (null.case.role, control.case.role)
    assert ("host-copy-damaged",) == control.case.target.faults
    assert control.case.expected.offloaded_bytes > 0
    kept = null.case.baseline.offload.cpu_offload_gb or 1
    assert kept == control.case.target.offload.cpu_offload_gb


def test_controls_can_be_left_out():
    assert ["case"] == [p.case.role for p in plan([], controls=False).cases]


def test_the_first_setting_is_launched_once_for_all_pairs():
    made = plan(["--cpu-offload-gb", "1"], ["--offload-group-size", "2"], controls=False)

    assert 2 == len(made.cases)
    assert 3 == len(made.runs)
    assert [Tier.EXACT] * 2 == [p.case.tier for p in made.cases]


def test_the_tier_asked_for_reaches_the_pairs():
    made = plan(["--cpu-offload-gb", "1"], controls=False, tier=Tier.LOGPROB)

    assert [Tier.LOGPROB] == [p.case.tier for p in made.cases]
