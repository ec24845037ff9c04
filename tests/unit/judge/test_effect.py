"""The effect judge: asked against live, and what counts as VACUOUS or FAIL."""

from dataclasses import replace

import pytest

from harness.core import OffloadConfig, Step, Verdict
from harness.judge.effect import judge_effect
from tests.builders import (
    NONE,
    PREFETCH,
    UVA,
    baseline_run,
    build_case,
    build_expectation,
    build_null_case,
    build_params,
    build_run,
    noop_run,
    target_run,
)


def unpinned(case, num):
    """The target's parameters with the first `num` offloaded ones unpinned."""
    names = set(case.expected.offloaded_params[:num])
    return tuple(
        replace(p, is_pinned=p.is_pinned and p.name not in names)
        for p in build_params(case.expected)
    )


def test_offload_that_took_effect_passes_with_counts():
    case = build_case(PREFETCH)
    finding = judge_effect(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.PASS
    assert finding.summary == (
        "Offload took effect: PrefetchOffloader is live under runner v2 with 2 layers, "
        "4 parameters, 4,000 bytes, 4 of them pinned; the baseline runs NoopOffloader with 0 bytes."
    )


def test_rows_hold_both_asks_and_both_answers():
    case = build_case(UVA)
    finding = judge_effect(case, baseline_run(case), noop_run(case))
    rows = {row["name"]: row for row in finding.evidence["rows"]}
    assert rows["offloader"] == {
        "name": "offloader",
        "asked": "UVAOffloader",
        "asked_baseline": "NoopOffloader",
        "baseline": "NoopOffloader",
        "target": "NoopOffloader",
        "ok": False,
    }
    assert rows["runner"]["ok"]
    assert not rows["pinned host copies"]["ok"]


def test_noop_offloader_is_vacuous_and_says_what_is_live():
    case = build_case(UVA)
    finding = judge_effect(case, baseline_run(case), noop_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == (
        "offload never took effect under runner v2 (NoopOffloader is live): "
        "0 of 2 layers and 0 of 4,000 bytes offloaded on the target"
    )


def test_installed_offloader_that_holds_nothing_is_vacuous():
    case = build_case(UVA)
    target = noop_run(case, offloader_class="UVAOffloader")
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.VACUOUS
    assert "UVAOffloader holds no parameter" in finding.summary


def test_other_offloader_than_asked_is_vacuous():
    case = build_case(UVA)
    target = target_run(case, offloader_class="PrefetchOffloader")
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.VACUOUS
    assert "UVAOffloader was asked for, PrefetchOffloader is live" in finding.summary


@pytest.mark.parametrize("side", ["baseline", "target"])
def test_other_runner_than_asked_is_vacuous_on_either_side(side):
    case = build_case(UVA)
    runs = {"baseline": baseline_run(case), "target": target_run(case)}
    make = {"baseline": baseline_run, "target": target_run}[side]
    runs[side] = make(case, runner="v1", runner_class="engine.v1.ModelRunner")
    finding = judge_effect(case, **runs)
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == (
        f"runner v2 was asked for, v1 is live: {side} runs engine.v1.ModelRunner"
    )


def test_runner_left_to_the_engine_is_not_judged():
    case = build_case(UVA, runner=None)
    finding = judge_effect(case, baseline_run(case, runner="v1"), target_run(case, runner="v1"))
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize(("num", "pinned"), [(4, 0), (1, 3)])
def test_pin_memory_asked_and_not_on_every_copy_is_vacuous(num, pinned):
    case = build_case(UVA)
    target = target_run(case, params=unpinned(case, num))
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == f"pin_memory asked: {pinned} of 4 pinned"


def test_pin_memory_off_and_pinned_all_the_same_is_vacuous():
    case = build_case(replace(UVA, pin_memory=False))
    params = tuple(replace(p, is_pinned=p.is_offloaded) for p in build_params(case.expected))
    finding = judge_effect(case, baseline_run(case), target_run(case, params=params))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "pin_memory=False not honoured: 4 of 4 pinned"


def test_pin_memory_off_and_honoured_passes():
    case = build_case(replace(UVA, pin_memory=False))
    finding = judge_effect(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize("uva", [True, False])
def test_uva_not_as_asked_is_vacuous(uva):
    case = build_case(replace(UVA, uva=uva))
    params = tuple(
        replace(p, is_uva=p.is_offloaded and not uva) for p in build_params(case.expected)
    )
    finding = judge_effect(case, baseline_run(case), target_run(case, params=params))
    assert finding.verdict is Verdict.VACUOUS
    assert "views of host memory" in finding.summary


def test_miscounting_offloader_fails():
    case = build_case(UVA)
    target = target_run(case, reported_offloaded_bytes=8000)
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.FAIL
    assert finding.summary == (
        "the target's offloader miscounts: it counts 8,000 bytes, "
        "the live parameters hold 4,000 bytes"
    )


def test_offloader_that_claims_bytes_no_parameter_holds_fails():
    case = build_case(UVA)
    target = noop_run(case, offloader_class="UVAOffloader", reported_offloaded_bytes=4000)
    assert judge_effect(case, baseline_run(case), target).verdict is Verdict.FAIL


def test_an_offloader_may_not_say_that_it_has_no_count():
    case = build_case(UVA)
    target = target_run(case, reported_offloaded_bytes=-1)
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.FAIL
    assert "it counts -1 byte," in finding.summary


@pytest.mark.parametrize("side", ["baseline", "target"])
def test_execution_mode_that_could_not_be_read_is_vacuous(side):
    case = build_case(UVA)
    runs = {"baseline": baseline_run(case), "target": target_run(case)}
    make = {"baseline": baseline_run, "target": target_run}[side]
    runs[side] = make(case, effective_config={})
    finding = judge_effect(case, runs["baseline"], runs["target"])
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == f"enforce_eager in effect could not be read: {side}"
    (row,) = (r for r in finding.evidence["rows"] if r["name"] == "enforce_eager")
    assert not row["ok"]


@pytest.mark.parametrize(
    ("model", "verdict"),
    [("toy", Verdict.PASS), ("./toy/", Verdict.PASS), ("other", Verdict.VACUOUS)],
)
def test_another_model_than_asked_is_vacuous(model, verdict):
    case = build_case(UVA)
    target = target_run(case, effective_config={"enforce_eager": True, "model": model})
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is verdict
    assert (verdict is Verdict.PASS) != ("target runs another model than asked" in finding.summary)


@pytest.mark.parametrize(
    ("step_idx", "model", "verdict"),
    [
        (0, "toy", Verdict.PASS),
        (0, "other", Verdict.VACUOUS),
        (1, "other", Verdict.PASS),
        (-1, "other", Verdict.PASS),
        (-1, "third", Verdict.VACUOUS),
    ],
)
def test_a_model_may_be_the_checkpoint_of_the_last_reload(step_idx, model, verdict):
    case = build_case(UVA)
    reload = Step(kind="reload_weights", args={"path": "other"})
    case = replace(case, workload=replace(case.workload, steps=(Step(), reload, Step())))
    config = {"enforce_eager": True, "model": model}
    target = target_run(case, effective_config=config, step_idx=step_idx)
    assert judge_effect(case, baseline_run(case), target).verdict is verdict


@pytest.mark.parametrize("make_case", [build_case, build_null_case], ids=["case", "null"])
def test_baseline_that_offloads_unasked_fails(make_case):
    case = make_case()
    offloading = build_expectation(build_case(UVA).target)
    baseline = build_run(case.baseline, offloading)
    finding = judge_effect(case, baseline, target_run(case))
    assert finding.verdict is Verdict.FAIL
    assert "the baseline offloads although it asked for none" in finding.summary


def test_null_case_is_not_asked_for_anything_else():
    case = build_null_case()
    target = target_run(case, runner="v1")
    assert judge_effect(case, baseline_run(case), target).verdict is Verdict.PASS


def test_baseline_without_readable_parameters_is_vacuous():
    case = build_case(UVA)
    finding = judge_effect(case, baseline_run(case, params=()), target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "no parameter of the baseline could be read"


def serving(case):
    sides = {n: replace(getattr(case, n), engine="vllm", server=True) for n in SIDES}
    return replace(case, **sides)


SIDES = ("baseline", "target")


def test_the_core_behind_a_server_is_asked_to_run_in_a_process_of_its_own():
    case = serving(build_case(UVA))
    runs = [
        run(case, is_core_process=True, effective_config={"enforce_eager": True})
        for run in (baseline_run, target_run)
    ]
    finding = judge_effect(case, *runs)
    assert finding.verdict is Verdict.PASS, finding.summary
    (row,) = (r for r in finding.evidence["rows"] if r["name"] == "own core process")
    assert (True, True, True) == (row["asked"], row["target"], row["ok"])


def test_a_server_that_never_ran_is_vacuous_and_called_a_server():
    case = serving(build_case(UVA))
    finding = judge_effect(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert "the engine core was asked to run in its server's process and did not" in (
        finding.summary
    )


@pytest.mark.parametrize("asked", [True, False])
def test_engine_core_in_another_process_than_asked_is_vacuous(asked):
    case = build_case(UVA)
    case = replace(case, target=replace(case.target, multiprocessing=asked))
    target = target_run(case, is_core_process=not asked)
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.VACUOUS
    assert "the engine core was asked to run in" in finding.summary


def test_execution_mode_that_was_changed_is_vacuous():
    case = build_case(UVA)
    target = target_run(case, effective_config={"enforce_eager": False})
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.VACUOUS
    assert "enforce_eager=True was asked for, False is in effect" in finding.summary


def test_ignored_request_is_vacuous_and_named_although_offload_took_effect():
    both = OffloadConfig(cpu_offload_gb=1.0, offload_group_size=2)
    case = build_case(both)
    finding = judge_effect(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == (
        "cpu_offload_gb=1 was asked for, but the prefetch backend never reads it"
    )


def test_selector_that_matches_nothing_is_vacuous_and_named():
    case = build_case(UVA, expected={"unmatched_selectors": ("mpl",)})
    finding = judge_effect(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "selector 'mpl' matches no parameter"


def test_backend_that_selects_no_parameter_is_vacuous():
    nothing = {"offloaded_params": (), "offloaded_layers": (), "offloaded_bytes": 0}
    case = build_case(UVA, expected=nothing)
    finding = judge_effect(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert "selects no parameter" in finding.summary


def test_contradiction_speaks_before_an_unproven_effect():
    case = build_case(UVA)
    target = target_run(case, params=unpinned(case, 4), reported_offloaded_bytes=1)
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.verdict is Verdict.FAIL
    assert finding.summary.endswith("(and 1 more)")


def test_two_sides_that_both_offload_are_each_held_to_their_own_ask():
    case = build_case(replace(UVA, pin_memory=False), baseline_offload=UVA)
    assert judge_effect(case, baseline_run(case), target_run(case)).verdict is Verdict.PASS
    silent = build_run(case.baseline, build_expectation(build_case(NONE).target))
    finding = judge_effect(case, silent, target_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert "offloaded on the baseline" in finding.summary


def test_engine_warnings_are_kept_as_evidence():
    case = build_case(UVA)
    target = target_run(case, warnings=("both backends set, prefetch wins",))
    finding = judge_effect(case, baseline_run(case), target)
    assert finding.evidence["warnings"] == {
        "baseline": [],
        "target": ["both backends set, prefetch wins"],
    }


@pytest.mark.parametrize(
    ("label", "version", "verdict"),
    [
        ("0.32.0", "0.32.0", Verdict.PASS),
        ("0.32", "0.32.0+cpu", Verdict.PASS),
        ("nightly", "0.33.0", Verdict.PASS),
        ("0.33.0", "0.32.0", Verdict.VACUOUS),
    ],
)
def test_a_label_that_claims_a_version_must_be_the_live_one(label, version, verdict):
    case = build_case(UVA)
    case = replace(
        case,
        baseline=replace(case.baseline, release=label),
        target=replace(case.target, release=label),
    )
    runs = []
    for run in (baseline_run(case), target_run(case)):
        runs.append(replace(run, probe=replace(run.probe, engine_version=version)))
    finding = judge_effect(case, *runs)
    assert finding.verdict is verdict
    if verdict is Verdict.VACUOUS:
        assert finding.summary.startswith("release 0.33.0 was asked for, 0.32.0 is live")
