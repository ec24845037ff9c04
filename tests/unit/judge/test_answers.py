"""Prompts as asked, answers as long as asked, log-probabilities where asked."""

from dataclasses import replace

import pytest

from harness.core import Step, Tier, Verdict
from harness.judge.tokens import judge_tokens
from tests.builders import ANSWERS, UVA, baseline_run, build_case, build_output, target_run

TIE = {2: {12: -0.7000, 99: -0.7004, 5: -4.0}}


def judge_outputs(left, right, *, tier=Tier.EXACT, **asked):
    """Judge two sides' answers to the builders' prompts, asked with some sampling parameters."""
    case = build_case(UVA, tier=tier)
    params = replace(case.workload.sampling_params, **asked)
    case = replace(case, workload=replace(case.workload, sampling_params=params))
    return judge_tokens(case, baseline_run(case, outputs=left), target_run(case, outputs=right))


OTHER = "request 0 was asked {}: nothing was compared"


@pytest.mark.parametrize(
    ("left", "right", "verdict", "text"),
    [
        (False, True, Verdict.FAIL, "request 0: the target was asked another prompt than the "),
        (True, False, Verdict.VACUOUS, OTHER.format("with different prompts")),
        (
            *(True, True, Verdict.VACUOUS),
            OTHER.format("another prompt than the workload's on both sides"),
        ),
    ],
)
def test_each_side_must_be_asked_the_workloads_prompts(left, right, verdict, text):
    right_one = [build_output(i, a) for i, a in enumerate(ANSWERS)]
    wrong_one = [replace(right_one[0], prompt_token_ids=(9, 9)), right_one[1]]
    finding = judge_outputs(*(wrong_one if wrong else right_one for wrong in (left, right)))
    assert finding.verdict is verdict
    assert finding.summary.startswith(text)


def test_prompts_are_asked_again_in_every_step():
    case = build_case(UVA)
    case = replace(case, workload=replace(case.workload, steps=(Step(), Step())))
    outputs = [build_output(i, a, step_idx=s) for s in (0, 1) for i, a in enumerate(ANSWERS)]
    runs = (baseline_run(case, outputs=outputs), target_run(case, outputs=outputs))
    assert judge_tokens(case, *runs).verdict is Verdict.PASS


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize(
    ("length", "text"), [(3, "answers are shorter than asked"), (5, "answers are longer")]
)
def test_equal_answers_of_another_length_than_asked_are_vacuous(tier, length, text):
    outputs = [build_output(0, ANSWERS[0]), build_output(1, (20, 21, 22, 23, 24)[:length])]
    finding = judge_outputs(outputs, outputs, tier=tier)
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary.startswith(text)
    assert f"request 1 has {length} tokens on the baseline and {length} on the" in finding.summary


def test_answers_may_end_early_where_the_end_token_counts():
    outputs = [build_output(0, ANSWERS[0]), build_output(1, (20,))]
    assert judge_outputs(outputs, outputs, ignore_eos=False).verdict is Verdict.PASS


def test_a_short_target_does_not_pass_behind_a_near_tie():
    left = [build_output(0, ANSWERS[0], rows=TIE), build_output(1, ANSWERS[1])]
    right = [build_output(0, (10, 11, 99)), left[1]]
    finding = judge_outputs(left, right, tier=Tier.LOGPROB)
    assert finding.verdict is Verdict.FAIL
    assert "request 0 has 4 tokens on the baseline and 3 on the target" in finding.summary


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize(
    ("left", "right", "verdict", "where"),
    [
        (False, False, Verdict.VACUOUS, "either side"),
        (False, True, Verdict.VACUOUS, "the baseline"),
        (True, False, Verdict.FAIL, "the target"),
    ],
)
def test_log_probabilities_that_were_asked_for_must_be_there(tier, left, right, verdict, where):
    sides = [
        [build_output(i, a, with_logprobs=kept) for i, a in enumerate(ANSWERS)]
        for kept in (left, right)
    ]
    finding = judge_outputs(*sides, tier=tier)
    assert finding.verdict is verdict
    assert f"were asked for and not kept on {where}" in finding.summary
    assert finding.evidence["max_logprob_difference"] is None


def test_no_distance_of_log_probabilities_is_claimed_where_none_were_asked_for():
    outputs = [build_output(i, a, with_logprobs=False) for i, a in enumerate(ANSWERS)]
    finding = judge_outputs(outputs, outputs, logprobs=None)
    assert finding.verdict is Verdict.PASS
    assert finding.summary == "All 8 tokens of 2 requests are equal (log-probabilities not kept)."


def test_one_empty_answer_is_vacuous_though_the_others_are_equal():
    outputs = [build_output(0, ANSWERS[0]), build_output(1, ())]
    finding = judge_outputs(outputs, outputs)
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "the answer of request 1 is empty: nothing was compared"
