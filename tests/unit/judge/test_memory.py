"""The memory judge: bytes saved, host copies, rounding, and what it cannot tell."""

from dataclasses import replace

import pytest

from harness.core import HostMemory, Verdict
from harness.judge.memory import judge_memory
from tests.builders import (
    NONE,
    PREFETCH,
    UVA,
    baseline_run,
    build_case,
    build_memory,
    noop_run,
    target_run,
)


def judge_trace(case, **changes):
    memory = build_memory(case.expected, **changes)
    return judge_memory(case, baseline_run(case), target_run(case, memory=memory))


def test_saving_equal_to_offloaded_minus_pool_passes():
    case = build_case(PREFETCH)
    finding = judge_memory(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.PASS
    assert finding.summary == (
        "The device holds 2,000 bytes less: 4,000 offloaded minus a pool of 2,000."
    )
    assert finding.evidence["saved_bytes"] == 2000


def test_what_graphs_keep_to_copy_into_is_not_saved():
    case = build_case(UVA, expected={"graph_bytes": 500})
    right = build_memory(case.expected).device_bytes
    finding = judge_trace(case, device_bytes=right + 500)
    assert finding.verdict is Verdict.PASS
    assert "4,000 offloaded minus temporaries of graphs of 500." in finding.summary
    assert judge_trace(case, device_bytes=right).verdict is Verdict.FAIL


@pytest.mark.parametrize("off_by", [-1, 1])
def test_saving_off_by_one_byte_fails(off_by):
    case = build_case(UVA)
    right = build_memory(case.expected).device_bytes
    finding = judge_trace(case, device_bytes=right + off_by)
    assert finding.verdict is Verdict.FAIL
    assert f"({-off_by:+,})" in finding.summary


@pytest.mark.parametrize(("off_by", "verdict"), [(2044, Verdict.PASS), (2045, Verdict.FAIL)])
def test_rounding_is_allowed_for_each_tensor_and_no_more(off_by, verdict):
    case = build_case(UVA)
    right = build_memory(case.expected).device_bytes
    finding = judge_trace(case, device_bytes=right + off_by, granularity_bytes=512)
    assert finding.verdict is verdict


def test_masters_kept_on_the_device_fail():
    case = build_case(UVA)
    baseline = baseline_run(case)
    kept = replace(build_memory(case.expected), device_bytes=baseline.probe.memory.device_bytes)
    finding = judge_memory(case, baseline, target_run(case, memory=kept))
    assert finding.verdict is Verdict.FAIL
    assert "had to hold 4,000 bytes less" in finding.summary


@pytest.mark.parametrize(("pin", "space"), [(True, "pinned"), (False, "host")])
def test_copies_that_no_host_allocator_holds_fail(pin, space):
    case = build_case(replace(UVA, pin_memory=pin))
    finding = judge_trace(case, **{f"{space}_bytes": 3999})
    assert finding.verdict is Verdict.FAIL
    assert f"the {space} memory of the target had to grow by 4,000 bytes" in finding.summary


def test_pin_that_was_not_honoured_is_left_to_the_effect_judge():
    case = build_case(UVA)
    params = tuple(
        replace(p, is_pinned=False, space="host") if p.is_offloaded else p
        for p in target_run(case).probe.params
    )
    memory = build_memory(case.expected, pinned_bytes=0, host_bytes=4000)
    target = target_run(case, params=params, memory=memory)
    assert judge_memory(case, baseline_run(case), target).verdict is Verdict.PASS


@pytest.mark.parametrize("side", ["baseline", "target"])
def test_memory_that_was_not_measured_cannot_tell(side):
    case = build_case(UVA)
    runs = {"baseline": baseline_run(case), "target": target_run(case)}
    make = {"baseline": baseline_run, "target": target_run}[side]
    runs[side] = make(case, memory=None)
    finding = judge_memory(case, **runs)
    assert finding.verdict is Verdict.VACUOUS
    assert f"memory of the {side} was not measured" in finding.summary


def test_nothing_offloaded_is_vacuous():
    case = build_case(UVA)
    finding = judge_memory(case, baseline_run(case), noop_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "nothing is offloaded: no saving to measure (0 bytes less)"


def test_case_without_offload_gets_no_word():
    case = build_case(NONE)
    assert judge_memory(case, baseline_run(case), target_run(case)) is None


def test_sides_of_other_runners_are_compared_by_weights_and_pool_alone():
    case = build_case(PREFETCH)
    case = replace(case, target=replace(case.target, runner="v1"))
    memory = build_memory(case.expected)
    memory = replace(
        memory,
        device_bytes=memory.device_bytes + 333,
        by_kind={**memory.by_kind, "state": 333},
    )
    finding = judge_memory(case, baseline_run(case), target_run(case, memory=memory))
    assert finding.verdict is Verdict.PASS
    assert finding.evidence["account"] == "weights and buffer pool"


def test_state_that_grew_with_offload_alone_fails():
    case = build_case(PREFETCH)
    memory = build_memory(case.expected)
    memory = replace(memory, device_bytes=memory.device_bytes + 333)
    finding = judge_memory(case, baseline_run(case), target_run(case, memory=memory))
    assert finding.verdict is Verdict.FAIL


def test_pool_as_large_as_what_is_offloaded_passes_and_says_that_nothing_is_saved():
    case = build_case(PREFETCH, expected={"pool_bytes": 4000})
    finding = judge_memory(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.PASS
    assert finding.summary.startswith("The device holds 0 bytes more, as it must")


def test_two_offloading_sides_are_compared_by_their_difference():
    case = build_case(PREFETCH, baseline_offload=UVA)
    finding = judge_memory(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.PASS
    assert finding.evidence["expected_saved_bytes"] == -2000


def test_a_cache_that_takes_what_offload_freed_is_left_out_on_a_limited_device():
    case = build_case(UVA)
    trace = build_memory(case.expected)
    grown = {**trace.by_kind, "kv_cache": trace.by_kind["kv_cache"] + 300}
    total = trace.device_bytes + 300
    finding = judge_trace(case, by_kind=grown, device_bytes=total)
    assert finding.verdict is Verdict.FAIL

    memory = [
        replace(build_memory(case.expected_baseline), device_capacity_bytes=50_000),
        replace(trace, by_kind=grown, device_bytes=total, device_capacity_bytes=50_000),
    ]
    finding = judge_memory(
        case, baseline_run(case, memory=memory[0]), target_run(case, memory=memory[1])
    )
    assert finding.verdict is Verdict.PASS
    assert "without the KV cache" in finding.evidence["account"]


def test_two_sides_measured_in_one_process_prove_no_saving():
    case = build_case(UVA)
    baseline, target = baseline_run(case, process_id=7), target_run(case, process_id=7)
    finding = judge_memory(case, baseline, target)
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary.startswith("both sides were measured in one process (7)")


def test_an_unknown_process_is_not_taken_for_a_shared_one():
    case = build_case(UVA)
    finding = judge_memory(case, baseline_run(case, process_id=0), target_run(case, process_id=0))
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("taken", "text"),
    [
        (5000, ""),
        (
            5001,
            " Pinned tax: host memory grew by 5,001 bytes, 25% more than is offloaded, 1,001 of it "
            "by rounding pinned allocations up.",
        ),
        (None, ""),
    ],
)
def test_host_memory_that_grows_by_a_quarter_more_than_is_offloaded_is_named(taken, text):
    case = build_case(UVA)
    finding = judge_trace(case, pinned_allocated_bytes=taken)

    assert finding.verdict is Verdict.PASS
    assert finding.summary.partition("offloaded.")[2] == text
    assert finding.evidence["host_growth_bytes"] == (taken or 4000)
    assert finding.evidence["expected_host_growth_bytes"] == 4000


def test_host_memory_that_grows_without_rounding_is_named_without_it():
    finding = judge_trace(build_case(UVA), host_bytes=4000)

    assert finding.verdict is Verdict.PASS
    assert "grew by 8,000 bytes, 100% more than is offloaded." in finding.summary


def test_the_kernels_figures_do_not_enter_the_evidence():
    case = build_case(UVA)
    process = HostMemory(rss_bytes=9, pss_bytes=9, group_rss_bytes=9, group_pss_bytes=9)
    findings = [judge_trace(case, process=each) for each in (None, process)]

    assert findings[0] == findings[1]
