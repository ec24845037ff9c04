"""Runs that did not come through speak first; then each judge in order."""

import pytest

from harness.core import RunStatus, UsageError, Verdict, fold
from harness.judge import JUDGES, judge_case
from tests.builders import (
    NONE,
    PREFETCH,
    UVA,
    baseline_run,
    build_case,
    build_null_case,
    failed_run,
    noop_run,
    target_run,
)


@pytest.mark.parametrize("offload", [UVA, PREFETCH], ids=["uva", "prefetch"])
def test_proven_offload_passes_every_judge(offload):
    case = build_case(offload)
    findings = judge_case(case, baseline_run(case), target_run(case))
    assert [f.judge for f in findings] == ["effect", "placement", "memory", "tokens"]
    assert [f.verdict for f in findings] == [Verdict.PASS] * 4


@pytest.mark.parametrize("offload", [UVA, PREFETCH], ids=["uva", "prefetch"])
def test_noop_offloader_with_equal_tokens_is_vacuous(offload):
    case = build_case(offload)
    findings = judge_case(case, baseline_run(case), noop_run(case))
    words = {f.judge: f.verdict for f in findings}
    assert words == {
        "effect": Verdict.VACUOUS,
        "placement": Verdict.VACUOUS,
        "memory": Verdict.VACUOUS,
        "tokens": Verdict.PASS,
    }
    assert fold(findings) is Verdict.VACUOUS
    causes = {f.evidence["cause"] for f in findings[:3]}
    assert causes == {"offload never took effect under runner v2 (NoopOffloader is live)"}


def test_null_case_that_is_exact_passes():
    case = build_null_case()
    assert fold(judge_case(case, baseline_run(case), target_run(case))) is Verdict.PASS


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (RunStatus.CRASH, "crashed"),
        (RunStatus.HANG, "passed its deadline"),
        (RunStatus.OOM, "ran out of device memory"),
        (RunStatus.INTERRUPTED, "was interrupted"),
    ],
)
@pytest.mark.parametrize("side", ["baseline", "target"])
def test_run_that_did_not_come_through_is_a_single_error_naming_the_side(status, ending, side):
    case = build_case()
    runs = {"baseline": baseline_run(case), "target": target_run(case)}
    runs[side] = failed_run(case, status)
    (finding,) = judge_case(case, runs["baseline"], runs["target"])
    assert finding.verdict is Verdict.ERROR
    assert finding.summary == f"the {side} {ending}: boom"
    assert finding.evidence["status"] == status.value


def test_error_text_says_so_when_the_run_left_none():
    case = build_case()
    (finding,) = judge_case(case, baseline_run(case), failed_run(case, RunStatus.CRASH, error=None))
    assert finding.summary == "the target crashed: no error line was left"


def test_refused_setting_is_unsupported_with_the_engines_reason():
    case = build_case()
    refused = failed_run(case, RunStatus.UNSUPPORTED, "graphs need the cuda device")
    (finding,) = judge_case(case, baseline_run(case), refused)
    assert finding.verdict is Verdict.UNSUPPORTED
    assert finding.summary == (
        "the engine refused the target's setting: graphs need the cuda device"
    )


def test_crash_of_one_side_outranks_refusal_of_the_other():
    case = build_case()
    refused = failed_run(case, RunStatus.UNSUPPORTED)
    (finding,) = judge_case(case, refused, failed_run(case, RunStatus.CRASH))
    assert finding.verdict is Verdict.ERROR


def test_missing_probe_is_an_error_although_tokens_are_equal():
    from dataclasses import replace

    case = build_case()
    (finding,) = judge_case(case, baseline_run(case), replace(target_run(case), probe=None))
    assert finding.verdict is Verdict.ERROR
    assert "the target could not be probed" in finding.summary


def test_probe_drift_is_an_error_naming_what_moved():
    case = build_case()
    moved = baseline_run(case, drift=("model_runner.offloader", "buffer_pool"))
    (finding,) = judge_case(case, moved, target_run(case))
    assert finding.verdict is Verdict.ERROR
    assert finding.summary == (
        "the baseline's internals moved, not found: model_runner.offloader, buffer_pool"
    )


def test_two_equal_settings_are_vacuous_outside_a_null_case():
    case = build_case(NONE)
    (finding,) = judge_case(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "both sides ask for the same setting: nothing was compared"


def test_only_the_judges_a_case_names_speak_in_its_order():
    case = build_case(judges=("tokens", "effect"))
    findings = judge_case(case, baseline_run(case), target_run(case))
    assert [f.judge for f in findings] == ["tokens", "effect"]


def test_unknown_judge_is_refused_with_the_nearest_name():
    case = build_case(judges=("token",))
    with pytest.raises(UsageError, match=r"Unknown judge 'token'.*Did you mean 'tokens'"):
        judge_case(case, baseline_run(case), target_run(case))


def test_every_registered_judge_can_be_loaded():
    assert len(list(JUDGES)) >= 6
    assert all(callable(JUDGES.get(name)) for name in JUDGES)
