"""Memory must be after each generate of a lifecycle what it was after the first."""

from dataclasses import replace

import pytest

from harness.core import Step, Verdict
from harness.judge.growth import who_grew
from harness.judge.memory import judge_memory
from tests.builders import baseline_run, build_case, target_run


def build(*growths, side="target", **memory):
    """A case of a generate for each of `growths`, bytes more than after the first; its runs."""
    case = build_case()
    case = replace(case, workload=replace(case.workload, steps=(Step(),) * len(growths)))
    runs = {"baseline": baseline_run(case), "target": target_run(case)}
    grown = runs[side]
    probes = tuple(
        replace(grown.probe, step_idx=i, memory=grow(grown.probe.memory, growth, **memory))
        for i, growth in enumerate(growths)
    )
    runs[side] = replace(grown, step_probes=probes)
    return case, runs["baseline"], runs["target"]


def grow(memory, growth, *, kind="device", **changes):
    name = f"{kind}_bytes"
    return replace(memory, **{name: getattr(memory, name) + growth}, **changes)


@pytest.mark.parametrize("kind", ["device", "pinned", "host"])
@pytest.mark.parametrize("side", ["baseline", "target"])
def test_one_byte_more_after_a_later_generate_fails(side, kind):
    found = judge_memory(*build(0, 0, 1, side=side, kind=kind))

    assert found.verdict is Verdict.FAIL
    assert found.summary == (
        f"the {side} holds 1 byte more of {kind} memory after step 2 than after step 0"
    )


def test_the_same_or_less_is_no_growth():
    assert who_grew(*build(0, 0, -8)) == ""
    assert judge_memory(*build(0, 0)).verdict is Verdict.PASS


def test_an_allocator_that_rounds_says_nothing():
    assert who_grew(*build(0, 512, granularity_bytes=512)) == ""
