"""A sleep is judged by the bytes it freed, not because it was asked for."""

from dataclasses import replace

import pytest

from harness.core import MemoryTrace, Step, Verdict
from harness.judge import judge_case
from harness.judge.sleep import judge_sleep
from tests import builders

STEPS = (
    Step(),
    Step(kind="sleep", args={"level": 1}),
    Step(kind="wake_up"),
    Step(),
)
WEIGHTS = 10_000


def lifecycle(run, device_bytes, *, by_kind=None, asleep=()):
    """The run with a probe after each step, with that many bytes on the device."""
    kinds = {"weights": WEIGHTS} if by_kind is None else by_kind
    probes = tuple(
        replace(
            run.probe,
            step_idx=step_idx,
            is_asleep=step_idx in asleep,
            memory=MemoryTrace(device_bytes=num, device_peak_bytes=num, by_kind=kinds),
        )
        for step_idx, num in enumerate(device_bytes)
    )
    return replace(run, step_probes=probes, probe=replace(probes[-1], step_idx=-1))


def judge(target_bytes, baseline_bytes=(12_000, 1_000, 12_000, 12_000), **changes):
    case = builders.build_case()
    case = replace(case, workload=replace(case.workload, steps=STEPS))
    case = replace(case, role=changes.pop("role", "case"))
    run, base = builders.target_run(case), builders.baseline_run(case)
    return judge_sleep(
        case, lifecycle(base, baseline_bytes, asleep=(1,)), lifecycle(run, target_bytes, **changes)
    )


def test_a_sleep_that_freed_the_weights_says_nothing():
    assert judge((12_000, 2_000, 12_000, 12_000)) is None


def test_a_sleep_that_freed_nothing_is_vacuous_and_says_of_which_side():
    word = judge((12_000, 12_000, 12_000, 12_000))
    assert word.verdict is Verdict.VACUOUS
    assert word.summary == "after step 1 (sleep 1): sleep level 1 freed nothing on the target"
    word = judge((12_000, 2_000, 12_000, 12_000), (5, 5, 5, 5))
    assert word.summary.endswith("sleep level 1 freed nothing on the baseline")


def test_a_sleep_that_freed_a_part_is_vacuous_with_both_figures():
    word = judge((12_000, 5_000, 12_000, 12_000))
    assert word.verdict is Verdict.VACUOUS
    assert "freed too little: 7,000 bytes of 10,000" in word.summary


def test_without_an_account_by_kind_the_weights_are_those_on_the_device():
    word = judge((12_000, 12_000, 12_000, 12_000), by_kind={})
    assert "freed nothing" in word.summary


def test_a_null_case_is_not_asked():
    assert judge((12_000, 12_000, 12_000, 12_000), role="null") is None


def test_memory_that_was_not_measured_proves_nothing():
    word = judge((12_000,))
    assert "memory was not measured before and after" in word.summary


@pytest.mark.parametrize("is_freed", [False, True])
def test_the_memory_judge_of_a_lifecycle_gives_its_word(is_freed):
    case = builders.build_case()
    case = replace(case, workload=replace(case.workload, steps=STEPS), judges=("memory",))
    sides = []
    for run in (builders.baseline_run(case), builders.target_run(case)):
        memory = run.probe.memory
        away = replace(memory, device_bytes=0) if is_freed else memory
        probes = tuple(
            replace(run.probe, step_idx=i, memory=away if i == 1 else memory, is_asleep=i == 1)
            for i in range(len(STEPS))
        )
        sides.append(replace(run, step_probes=probes))
    (word,) = judge_case(case, *sides)
    assert word.verdict is (Verdict.PASS if is_freed else Verdict.VACUOUS)
    assert ("freed nothing" in word.summary) is not is_freed
