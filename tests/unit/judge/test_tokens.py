"""The tokens judge: both tiers, near-ties, moved log-probabilities, and nothing to compare."""

import math
from dataclasses import replace

import pytest

from harness.core import Step, Tier, Verdict
from harness.judge.tokens import judge_tokens
from tests.builders import (
    ANSWERS,
    UVA,
    baseline_run,
    build_case,
    build_output,
    target_run,
)

TIE = {2: {12: -0.7000, 99: -0.7004, 5: -4.0}}
APART = {2: {12: -0.2, 99: -2.2, 5: -4.0}}


def judge(changed, *, rows=None, tier=Tier.EXACT, dtype="float32", **output_changes):
    """Judge a target whose first answer is `changed`; the baseline's first answer has `rows`."""
    case = build_case(UVA, tier=tier, dtype=dtype)
    second = build_output(1, ANSWERS[1])
    baseline = baseline_run(case, outputs=[build_output(0, ANSWERS[0], rows=rows), second])
    target_rows = {i: row for i, row in (rows or {}).items() if changed[i] == ANSWERS[0][i]}
    first = build_output(0, changed, rows=target_rows, **output_changes)
    return judge_tokens(case, baseline, target_run(case, outputs=[first, second]))


def judge_outputs(left, right, **case_changes):
    case = build_case(UVA, **case_changes)
    return judge_tokens(case, baseline_run(case, outputs=left), target_run(case, outputs=right))


def test_equal_answers_pass_with_the_number_compared():
    case = build_case(UVA)
    finding = judge_tokens(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.PASS
    assert finding.summary == (
        "All 8 tokens of 2 requests are equal (log-probabilities within 0 nats)."
    )
    assert finding.divergence is None
    assert finding.evidence["num_tokens"] == 8


@pytest.mark.parametrize("rows", [TIE, APART], ids=["near-tie", "apart"])
def test_any_difference_fails_under_exact(rows):
    assert judge((10, 11, 99, 13), rows=rows).verdict is Verdict.FAIL


def test_first_difference_is_told_with_margin_and_both_logprobs():
    finding = judge((10, 11, 99, 13), rows=APART)
    first = finding.divergence
    assert (first.request_idx, first.token_idx) == (0, 2)
    assert (first.expected, first.actual) == (12, 99)
    assert first.expected_logprob == -0.2
    assert first.actual_logprob == -0.1
    assert first.margin == pytest.approx(2.0)
    assert not first.margin_is_bound
    assert not first.near_tie
    assert first.num_differing == 1
    assert finding.summary == (
        "1 of 2 answers differ: request 0 at position 2, expected token 12, got token 99; "
        "the baseline preferred its own by 2 nats, no near-tie."
    )


def test_logprob_of_the_targets_token_is_read_at_the_difference():
    left = [build_output(i, a) for i, a in enumerate(ANSWERS)]
    right = [build_output(0, (10, 11, 99, 13), rows={2: {99: -0.3, 12: -2.3}}), left[1]]
    assert judge_outputs(left, right).divergence.actual_logprob == -0.3


def test_margin_to_a_token_outside_the_top_is_a_lower_bound_and_never_a_near_tie():
    finding = judge((10, 11, 77, 13), rows={2: {12: -0.7, 99: -0.7001}})
    assert finding.divergence.margin_is_bound
    assert finding.divergence.margin == pytest.approx(0.0001)
    assert not finding.divergence.near_tie
    assert "by at least 0.0001 nats" in finding.summary


def test_near_tie_passes_under_logprob_and_is_still_shown():
    finding = judge((10, 11, 99, 13), rows=TIE, tier=Tier.LOGPROB)
    assert finding.verdict is Verdict.PASS
    assert finding.divergence.near_tie


def test_difference_beyond_a_near_tie_fails_under_logprob():
    finding = judge((10, 11, 99, 13), rows=APART, tier=Tier.LOGPROB)
    assert finding.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("dtype", "verdict"),
    [("float32", Verdict.FAIL), ("bfloat16", Verdict.PASS), ("float16", Verdict.PASS)],
)
def test_near_tie_threshold_follows_the_dtype(dtype, verdict):
    rows = {2: {12: -0.7, 99: -0.8}}
    finding = judge((10, 11, 99, 13), rows=rows, tier=Tier.LOGPROB, dtype=dtype)
    assert finding.verdict is verdict


def test_difference_without_logprobs_cannot_be_weighed_under_logprob():
    right = [build_output(0, (10, 11, 99, 13)), build_output(1, ANSWERS[1])]
    left = [build_output(i, a, with_logprobs=False) for i, a in enumerate(ANSWERS)]
    finding = judge_outputs(left, right, tier=Tier.LOGPROB)
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary.endswith("no margin is known.")


def test_difference_beyond_a_near_tie_leads_under_logprob_though_a_near_tie_comes_first():
    left = [build_output(0, ANSWERS[0], rows=TIE), build_output(1, ANSWERS[1])]
    right = [build_output(0, (10, 11, 99, 13)), build_output(1, (20, 99, 22, 23))]
    finding = judge_outputs(left, right, tier=Tier.LOGPROB)
    assert finding.verdict is Verdict.FAIL
    assert finding.divergence.request_idx == 1


def test_logprobs_moved_before_the_near_tie_fail_under_logprob():
    finding = judge((10, 11, 99, 13), rows=TIE, tier=Tier.LOGPROB, shift=0.002)
    assert finding.verdict is Verdict.FAIL
    assert "moved by 0.002 nats before any difference" in finding.summary


@pytest.mark.parametrize("tier", list(Tier))
def test_shorter_answer_fails_and_shows_the_end(tier):
    finding = judge((10, 11, 12), tier=tier)
    assert finding.verdict is Verdict.FAIL
    assert finding.divergence.actual == -1
    assert "position 3, expected token 13, got the end" in finding.summary


@pytest.mark.parametrize(("shift", "verdict"), [(0.005, Verdict.PASS), (0.02, Verdict.FAIL)])
def test_logprobs_that_moved_far_fail_under_exact_though_every_token_is_equal(shift, verdict):
    finding = judge(ANSWERS[0], shift=shift)
    assert finding.verdict is verdict
    assert finding.evidence["max_logprob_difference"] == pytest.approx(shift)


def test_target_whose_logprobs_are_not_numbers_fails():
    finding = judge(ANSWERS[0], shift=math.nan)
    assert finding.verdict is Verdict.FAIL
    assert finding.evidence["max_logprob_difference"] is None


def test_baseline_whose_logprobs_are_not_numbers_compares_nothing():
    outputs = [build_output(i, a, shift=math.nan) for i, a in enumerate(ANSWERS)]
    finding = judge_outputs(outputs, outputs)
    assert finding.verdict is Verdict.VACUOUS


def test_no_output_is_vacuous():
    finding = judge_outputs([], [])
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == ("no output was common to baseline and target: nothing was compared")


def test_empty_answers_are_vacuous():
    empty = [build_output(0, ()), build_output(1, ())]
    finding = judge_outputs(empty, empty)
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "every answer is empty: nothing was compared"


def test_unanswered_prompts_are_vacuous_though_the_answers_are_equal():
    one = [build_output(0, ANSWERS[0])]
    finding = judge_outputs(one, one)
    assert finding.verdict is Verdict.VACUOUS
    assert "only 1 of 2 prompts were answered" in finding.summary


def test_unanswered_second_step_is_vacuous():
    case = build_case(UVA)
    case = replace(case, workload=replace(case.workload, steps=(Step(), Step())))
    finding = judge_tokens(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert "only 2 of 4 prompts were answered" in finding.summary


def test_other_number_of_answers_fails():
    left = [build_output(i, a) for i, a in enumerate(ANSWERS)]
    finding = judge_outputs(left, left[:1])
    assert finding.verdict is Verdict.FAIL
    assert finding.summary == "the baseline answered 2 requests, the target 1"


def test_answers_are_matched_by_request_and_not_by_the_order_they_finished_in():
    left = [build_output(i, a) for i, a in enumerate(ANSWERS)]
    assert judge_outputs(left, left[::-1]).verdict is Verdict.PASS


def test_answers_with_foreign_request_ids_are_matched_by_position():
    left = [build_output(i, a) for i, a in enumerate(ANSWERS)]
    right = [replace(o, request_id=f"cmpl-{o.request_id}") for o in left]
    assert judge_outputs(left, right).verdict is Verdict.PASS


def test_strips_hold_both_answers_around_the_difference():
    finding = judge((10, 11, 99, 13), rows=APART, text="a story")
    (strip,) = finding.evidence["strips"]
    assert strip["baseline"] == [10, 11, 12, 13]
    assert strip["target"] == [10, 11, 99, 13]
    assert strip["token_idx"] == 2
    assert strip["margins"][2] == pytest.approx(2.0)
    assert strip["target_text"] == "a story"


def test_at_most_eight_strips_are_kept():
    case = build_case(UVA)
    prompts = tuple((i, i + 1) for i in range(12))
    case = replace(case, workload=replace(case.workload, prompt_token_ids=prompts))
    left = [build_output(i, (1, 2), prompt_token_ids=prompts[i]) for i in range(12)]
    right = [build_output(i, (1, 3), prompt_token_ids=prompts[i]) for i in range(12)]
    finding = judge_tokens(case, baseline_run(case, outputs=left), target_run(case, outputs=right))
    assert finding.divergence.num_differing == 12
    assert len(finding.evidence["strips"]) == 8


@pytest.mark.parametrize("second", [ANSWERS[1], (7, 7)], ids=["equal", "differing"])
def test_sampled_answers_prove_nothing_either_way(second):
    case = build_case(UVA)
    params = replace(case.workload.sampling_params, temperature=0.8)
    case = replace(case, workload=replace(case.workload, sampling_params=params))
    outputs = [build_output(0, ANSWERS[0]), build_output(1, second)]
    finding = judge_tokens(case, baseline_run(case), target_run(case, outputs=outputs))
    assert finding.verdict is Verdict.VACUOUS
    assert "sampling at temperature 0.8" in finding.summary
