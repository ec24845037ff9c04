"""A session's exit code, its controls, and its one sentence."""

from dataclasses import replace

import pytest

from harness.core import ExitCode, Finding, RunStatus, Tier, Verdict
from harness.judge import conclude, judge_case
from tests.builders import (
    NONE,
    PREFETCH,
    UVA,
    baseline_run,
    build_case,
    build_expectation,
    build_null_case,
    build_output,
    build_result,
    failed_run,
    noop_run,
    target_run,
)


def judged(case, baseline=None, target=None):
    findings = judge_case(case, baseline or baseline_run(case), target or target_run(case))
    return build_result(case, findings)


def passing():
    return [judged(build_case(offload)) for offload in (UVA, PREFETCH)]


def silent(runner="v2"):
    return [
        judged(case, target=noop_run(case))
        for case in (build_case(o, runner=runner) for o in (UVA, PREFETCH))
    ]


def wrong(case=None):
    case = case or build_case(UVA)
    outputs = [build_output(0, (10, 11, 99, 13)), build_output(1, (20, 21, 22, 23))]
    return judged(case, target=target_run(case, outputs=outputs))


def broken(case=None):
    case = case or build_case(UVA)
    return judged(case, target=failed_run(case, RunStatus.CRASH))


def refused():
    case = build_case(UVA)
    return judged(case, target=failed_run(case, RunStatus.UNSUPPORTED, "needs the cuda device"))


def control(*, caught=True):
    case = build_case(UVA)
    case = replace(
        case,
        role="control",
        case_id="toy/control",
        target=replace(case.target, faults=("wrong-slot",)),
    )
    return wrong(case) if caught else judged(case)


def null(*, exact=True):
    case = build_null_case()
    return judged(case) if exact else wrong(case)


def runners():
    case = build_case(NONE)
    baseline = replace(case.baseline, runner="v1")
    return judged(replace(case, baseline=baseline, expected_baseline=build_expectation(baseline)))


def test_all_proven_is_zero_and_says_what_was_proven():
    outcome = conclude([null(), control(), *passing()])
    assert outcome.exit_code == ExitCode.PASS
    assert outcome.sentence == (
        "All 2 cells proven: offload took effect, weights stand where they should, "
        "memory was saved and all 16 tokens are equal."
    )
    assert outcome.controls == {null().case.case_id: "ok", "toy/control": "ok"}
    assert outcome.counts["PASS"] == 2


def test_silent_offloader_is_vacuous_although_every_token_is_equal():
    outcome = conclude([null(), control(), *silent(), *passing()])
    assert outcome.exit_code == ExitCode.VACUOUS
    assert outcome.sentence == (
        "2 of 4 cells are VACUOUS: offload never took effect under runner v2 "
        "(NoopOffloader is live), although every token is equal."
    )


def test_all_silent_is_said_of_all():
    assert conclude(silent()).sentence.startswith("All 2 cells are VACUOUS: offload never")


def test_tokens_are_called_equal_only_where_they_were_compared():
    case = build_case(UVA, judges=("effect", "placement"))
    uncompared = judged(case, target=noop_run(case))
    assert "although" not in conclude([uncompared]).sentence


def test_dominating_cause_leads_and_the_rest_is_counted():
    case = build_case(UVA, expected={"unmatched_selectors": ("mpl",)})
    outcome = conclude([judged(case), *silent(), *passing()])
    assert outcome.sentence == (
        "3 of 5 cells are VACUOUS: offload never took effect under runner v2 "
        "(NoopOffloader is live), although every token is equal; 1 for other causes, "
        f"first {case.anchor}: selector 'mpl' matches no parameter."
    )


def test_failing_cell_is_named_with_its_first_evidence():
    outcome = conclude([wrong(), *passing()])
    assert outcome.exit_code == ExitCode.FAIL
    assert outcome.sentence.startswith(
        "1 of 3 cells FAILS: toy/v2-uva-gb1-pin1-eager: 1 of 2 answers differ: request 0 "
        "at position 2, expected token 12, got token 99;"
    )


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([wrong(), broken(), *silent()], ExitCode.FAIL),
        ([broken(), *silent(), *passing()], ExitCode.ERROR),
        ([*silent(), refused()], ExitCode.VACUOUS),
        ([refused(), *passing()], ExitCode.PASS),
        ([refused()], ExitCode.UNSUPPORTED),
        ([], ExitCode.VACUOUS),
        ([null(), control()], ExitCode.VACUOUS),
    ],
)
def test_worst_verdict_decides_the_exit_code(results, code):
    assert conclude(results, controls=False).exit_code == code


@pytest.mark.parametrize(
    ("controls", "what"),
    [
        ([], "no null case and no planted fault"),
        ([control()], "no null case"),
        ([null()], "no planted fault"),
    ],
)
def test_a_session_without_its_controls_never_gives_zero(controls, what):
    results = [*controls, *passing()]
    outcome = conclude(results)
    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith(
        f"No control was run ({what}), so no PASS can be trusted. Otherwise: All 2 cells proven"
    )
    assert conclude(results, controls=False).exit_code == ExitCode.PASS


def test_a_missing_control_does_not_hide_a_worse_verdict():
    assert conclude([wrong()]).exit_code == ExitCode.FAIL
    assert "No control" not in conclude([wrong()]).sentence


def test_no_planted_fault_is_missed_where_nobody_offloads():
    assert conclude([null(), runners()]).exit_code == ExitCode.PASS
    assert conclude([runners()]).exit_code == ExitCode.ERROR


def test_a_control_caught_by_the_wrong_judge_is_not_caught():
    caught = control()
    caught = replace(caught, case=replace(caught.case, must_fail=("tokens",)))
    assert conclude([null(), caught, *passing()]).exit_code == ExitCode.PASS
    missed = replace(caught, case=replace(caught.case, must_fail=("tokens", "integrity")))
    outcome = conclude([null(), missed, *passing()])
    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith("The fault wrong-slot was not caught (")
    assert "gave FAIL, but not by integrity: 1 of 2 answers differ" in outcome.sentence


def test_exact_verdicts_are_downgraded_by_a_null_case_that_is_not_exact():
    assert not conclude([null(), control(), *passing()]).downgraded
    assert conclude([null(exact=False), control(), *passing()]).downgraded
    assert conclude([null(exact=False), wrong()]).downgraded


def test_a_baseline_that_offloads_is_an_offload_proven():
    case = build_case(NONE, baseline_offload=UVA)
    case = replace(case, expected_baseline=build_expectation(case.baseline))
    outcome = conclude([null(), control(), judged(case)])
    assert outcome.exit_code == ExitCode.PASS, outcome.sentence
    assert "offload took effect" in outcome.sentence


def test_lesser_verdicts_are_counted_in_the_sentence():
    outcome = conclude([wrong(), broken(), *silent()])
    assert outcome.sentence.endswith("; 1 more ended in ERROR and 2 more are VACUOUS.")


def test_nothing_selected_says_so():
    assert conclude([]).sentence == "Nothing was compared: no cell was run, so nothing is proven."


def test_refused_cells_are_told_beside_the_proven_ones():
    assert conclude([refused(), *passing()]).sentence.endswith(
        "; 1 is UNSUPPORTED (needs the cuda device)."
    )
    assert conclude([refused()]).sentence == (
        "The one cell is UNSUPPORTED, nothing was compared: needs the cuda device."
    )


def test_cells_that_pass_without_asking_for_offload_prove_none():
    case = build_case(NONE)
    case = replace(case, target=replace(case.target, enforce_eager=False))
    result = judged(case)
    assert result.verdict is Verdict.PASS
    outcome = conclude([result])
    assert outcome.exit_code == ExitCode.VACUOUS
    assert outcome.sentence.startswith("No offload is proven: 1 cell passed")


def test_null_case_that_is_not_exact_never_gives_zero():
    outcome = conclude([null(exact=False), control(), *passing()])
    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith("The null case is not exact (toy/null-v2-none-eager gave")
    assert "so no EXACT verdict holds. Otherwise: All 2 cells proven" in outcome.sentence
    assert outcome.controls[null().case.case_id].startswith("FAIL: 1 of 2 answers differ")


def test_planted_fault_that_was_not_caught_never_gives_zero():
    outcome = conclude([null(), control(caught=False), *passing()])
    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith("The fault wrong-slot was not caught (")
    assert "so no PASS can be trusted. Otherwise:" in outcome.sentence


def test_control_that_did_not_run_never_gives_zero():
    bad = broken(replace(control().case))
    outcome = conclude([null(), bad, *passing()])
    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith("A control did not run (toy/control-")


def test_misbehaving_control_is_told_beside_a_worse_verdict():
    outcome = conclude([control(caught=False), wrong()])
    assert outcome.exit_code == ExitCode.FAIL
    assert outcome.sentence.endswith("so no PASS can be trusted.")


def test_controls_are_left_out_of_the_counts():
    outcome = conclude([null(), control(), *passing()])
    assert sum(outcome.counts.values()) == 2


def test_case_without_any_word_is_vacuous():
    result = replace(build_result(), findings=(), verdict=Verdict.VACUOUS)
    assert "no judge had a word" in conclude([result]).sentence


def test_near_ties_that_passed_are_not_called_equal():
    from harness.core import Divergence

    tie = Divergence(request_idx=0, token_idx=2, expected=1, actual=2, near_tie=True)
    word = Finding(
        judge="tokens",
        verdict=Verdict.PASS,
        summary="a near-tie",
        divergence=tie,
        evidence={"num_tokens": 8},
    )
    outcome = conclude([build_result(findings=[word])])
    assert "8 tokens are equal but for near-ties in 1 cell" in outcome.sentence


def of_release(result, label):
    case = result.case
    sides = {
        n: replace(getattr(case, n), engine="vllm", release=label) for n in ("baseline", "target")
    }
    case = replace(case, case_id=f"{case.role}-{case.case_id}@{label}", **sides)
    return replace(result, case=case)


def guarded(label):
    null = judged(build_null_case())
    return [of_release(r, label) for r in (null, control(), *passing())]


def test_releases_that_each_have_their_guards_are_proven():
    outcome = conclude([*guarded("0.26"), *guarded("0.28")])
    assert outcome.exit_code == ExitCode.PASS


@pytest.mark.parametrize(("role", "word"), [("null", "no null case"), ("control", "planted fault")])
def test_a_release_without_its_own_guard_is_not_trusted(role, word):
    second = [r for r in guarded("0.28") if r.case.role != role]
    outcome = conclude([*guarded("0.26"), *second])
    assert outcome.exit_code == ExitCode.ERROR
    assert f"{word} for vllm 0.28" in outcome.sentence


def test_a_comparison_across_releases_needs_no_guard_in_both():
    across = of_release(passing()[0], "0.28")
    across = replace(
        across, case=replace(across.case, baseline=replace(across.case.baseline, release="0.26"))
    )
    assert conclude([*guarded("0.26"), across]).exit_code == ExitCode.PASS


def test_releases_compared_without_offload_are_something_proven():
    null = of_release(judged(build_null_case()), "0.28")
    case = build_case(NONE, role="release")
    pair = of_release(build_result(case), "0.28")
    pair = replace(
        pair, case=replace(pair.case, baseline=replace(pair.case.baseline, release="0.26"))
    )
    assert conclude([null, pair]).exit_code == ExitCode.PASS


def changed(results, role, **fields):
    return [replace(r, **fields) if r.case.role == role else r for r in results]


def missing(label):
    """A release whose interpreter is not there: every run of it is an ERROR."""
    return [replace(r, verdict=Verdict.ERROR, findings=()) for r in guarded(label)]


def test_an_inexact_null_run_downgrades_its_own_release_only():
    bad = changed(guarded("0.28"), "null", verdict=Verdict.FAIL)
    outcome = conclude([*guarded("0.26"), *bad])
    assert (outcome.downgraded, outcome.not_exact) == (True, ("vllm 0.28",))
    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith("The null case of vllm 0.28 is not exact (")
    assert "so no EXACT verdict of vllm 0.28 holds" in outcome.sentence
    of = {r.case.target.release: r.case for r in [*guarded("0.26"), *bad] if r.counts}
    assert [True, False] == [outcome.downgrades(of[label]) for label in ("0.28", "0.26")]


def test_a_missing_release_downgrades_none():
    outcome = conclude([*guarded("0.26"), *missing("0.28")])
    assert outcome.exit_code == ExitCode.ERROR
    assert (outcome.downgraded, outcome.not_exact) == (False, ())
    assert "A control of vllm 0.28 did not run" in outcome.sentence


def test_a_null_run_that_broke_beside_judged_cells_downgrades_them():
    bad = changed(guarded("0.28"), "null", verdict=Verdict.ERROR)
    assert conclude([*guarded("0.26"), *bad]).not_exact == ("vllm 0.28",)


def test_a_comparison_across_releases_is_downgraded_with_either():
    bad = changed(guarded("0.26"), "null", verdict=Verdict.FAIL)
    outcome = conclude([*bad, *guarded("0.28")])
    across = of_release(passing()[0], "0.28").case
    across = replace(across, baseline=replace(across.baseline, release="0.26"))
    assert outcome.downgrades(across)
    assert not outcome.downgrades(replace(across, tier=Tier.LOGPROB))


def test_engines_are_told_apart_as_releases_are():
    reference = [judged(build_null_case()), control(), *passing()]
    bad = changed(reference, "null", verdict=Verdict.FAIL)
    assert conclude([*bad, *guarded("0.28")]).not_exact == ("reference",)


def test_a_session_of_one_release_names_none():
    bad = changed(guarded("0.28"), "null", verdict=Verdict.FAIL)
    outcome = conclude(bad)
    assert (outcome.downgraded, outcome.not_exact) == (True, ())
    assert outcome.sentence.startswith("The null case is not exact (")
    assert all(outcome.downgrades(r.case) for r in bad)


def hashed(mode):
    """A passing cell with a word on its weights."""
    result = passing()[0]
    word = Finding(
        judge="integrity", verdict=Verdict.PASS, summary="", evidence={"target": {"mode": mode}}
    )
    return replace(result, findings=(*result.findings, word))


def test_what_only_some_cells_prove_is_said_of_so_many():
    sentence = conclude([hashed("sampled"), *passing()], controls=False).sentence
    assert "compute read the right weights (in 1 of 3 cells)" in sentence


@pytest.mark.parametrize(
    ("modes", "words"),
    [
        (["sampled", "full"], "compute read the right weights"),
        (["rest", "rest"], "weights were right at rest"),
        (["sampled", "rest"], "weights were right, some hashed at rest"),
    ],
)
def test_hashes_at_rest_are_not_called_reads_by_compute(modes, words):
    sentence = conclude([hashed(mode) for mode in modes], controls=False).sentence
    assert f"{words} and" in sentence or f"{words}," in sentence
    assert ("compute read" in sentence) == ("rest" not in modes)


ABSENT = "engine 'vllm' is not installed in /x/python: install it there"


def absent(offload, side="target"):
    case = build_case(offload)
    return judged(case, **{side: failed_run(case, RunStatus.ABSENT, error=ABSENT)})


def test_controls_without_their_engine_do_not_repeat_the_reason():
    case = build_null_case()
    guard = judged(case, target=failed_run(case, RunStatus.ABSENT, error=ABSENT))

    sentence = conclude([guard, guard, control(), absent(UVA)]).sentence

    assert sentence == (
        f"The one cell ended in ERROR: {ABSENT}. 2 controls did not run for the same reason."
    )
    assert (
        f"gave ERROR: the target could not run: {ABSENT}"
        in conclude([guard, control(), *passing()]).sentence
    )


def test_cells_without_their_engine_have_one_reason_and_are_counted():
    outcome = conclude([*passing(), absent(UVA), absent(PREFETCH, "baseline")])
    assert outcome.exit_code == ExitCode.ERROR
    assert outcome.sentence.startswith(f"2 of 4 cells ended in ERROR: {ABSENT}.")

    outcome = conclude([*passing(), absent(UVA), absent(PREFETCH, "baseline"), broken()])
    assert outcome.sentence.startswith(f"3 of 5 cells ended in ERROR: 2 of them: {ABSENT}; 1 for")
