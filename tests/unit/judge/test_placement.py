"""The placement judge: names, bytes, slots, pool and refills, each able to fail."""

from dataclasses import replace

import pytest

from harness.core import BufferPoolInfo, Verdict
from harness.judge.placement import _wrong_slots, judge_placement
from tests.builders import (
    NONE,
    PREFETCH,
    UVA,
    baseline_run,
    build_case,
    build_expectation,
    build_params,
    build_run,
    noop_run,
    target_run,
)


def judge_pool(**changes):
    case = build_case(PREFETCH)
    pool = BufferPoolInfo(
        slot_capacity=1, num_bytes=2000, slots={1: 0, 3: 0}, refill_after={1: 3, 3: 1}
    )
    target = target_run(case, buffer_pool=replace(pool, **changes))
    return judge_placement(case, baseline_run(case), target)


def test_weights_as_computed_pass_and_say_so():
    case = build_case(PREFETCH)
    finding = judge_placement(case, baseline_run(case), target_run(case))
    assert finding.verdict is Verdict.PASS
    assert finding.summary == (
        "Weights stand where they should: 4 parameters of 2 layers, 4,000 bytes, as computed; "
        "they compute from the 1 slots of a pool of 2,000 bytes."
    )


def test_nothing_offloaded_is_vacuous_not_fail():
    case = build_case(PREFETCH)
    finding = judge_placement(case, baseline_run(case), noop_run(case))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "nothing is offloaded on the target: placement is unproven"


def test_case_without_offload_gets_no_word():
    case = build_case(NONE)
    assert judge_placement(case, baseline_run(case), target_run(case)) is None


def test_unasked_offload_fails():
    case = build_case(NONE)
    offloading = build_run(case.target, build_expectation(build_case(UVA).target))
    finding = judge_placement(case, baseline_run(case), offloading)
    assert finding.verdict is Verdict.FAIL
    assert "parameters offloaded unexpectedly: 4" in finding.summary


def test_missing_parameter_fails_by_name():
    case = build_case(UVA)
    params = tuple(
        replace(p, is_offloaded=False, space="device") if p.name == "layers.1.mlp" else p
        for p in build_params(case.expected)
    )
    finding = judge_placement(case, baseline_run(case), target_run(case, params=params))
    assert finding.verdict is Verdict.FAIL
    assert "1 of 4, layers.1.mlp" in finding.summary
    assert finding.evidence["missing"] == ["layers.1.mlp"]
    assert finding.evidence["actual"]["bytes"] == 3000


def test_one_byte_too_few_fails():
    case = build_case(UVA)
    params = tuple(
        replace(p, num_bytes=999) if p.name == "layers.1.mlp" else p
        for p in build_params(case.expected)
    )
    finding = judge_placement(case, baseline_run(case), target_run(case, params=params))
    assert finding.verdict is Verdict.FAIL
    assert "offloaded bytes differ: expected 4,000, found 3,999" in finding.summary


def test_offloaded_parameter_with_its_bytes_on_the_device_fails():
    case = build_case(UVA)
    params = tuple(replace(p, space="device") for p in build_params(case.expected))
    finding = judge_placement(case, baseline_run(case), target_run(case, params=params))
    assert finding.verdict is Verdict.FAIL
    assert "with their bytes on the device" in finding.summary


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"slot_capacity": 2}, "slot capacity differs: expected 1, found 2"),
        ({"num_bytes": 2001}, "pool bytes differ: expected 2,000, found 2,001"),
        ({"slots": {1: 0, 3: 1}}, "slot of layer differs: layer 3 expected 0, found 1"),
        ({"slots": {1: 0}}, "slot of layer differs: layer 3 expected 0, found None"),
        ({"refill_after": {1: 1}}, "refill after layer differs: layer 1 expected 3, found 1"),
        ({"refill_after": {1: 3}}, "refill after layer differs: layer 3 expected 1, found None"),
        (
            {"refill_after": {1: 3, 3: 1, 2: 1}},
            "refill after layer differs: layer 2 expected None, found 1",
        ),
    ],
)
def test_pool_not_as_computed_fails(changes, text):
    finding = judge_pool(**changes)
    assert finding.verdict is Verdict.FAIL
    assert text in finding.summary


RING = {0: 0, 1: 1, 2: 2, 3: 0, 4: 1}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({0: 0, 1: 1, 2: 2, 3: 0, 4: 1}, ""),
        ({0: 2, 1: 1, 2: 0, 3: 2, 4: 1}, ""),
        ({0: 5, 1: 7, 2: 6, 3: 5, 4: 7}, ""),
        ({0: 2, 1: 1, 2: 0, 3: 1, 4: 1}, "layer 3 expected 2, found 1; 1 of 5 wrong"),
        ({0: 0, 1: 0, 2: 2, 3: 0, 4: 0}, "layer 1 expected 1, found 0; 2 of 5 wrong"),
        ({0: 0, 1: 1, 2: 0, 3: 0, 4: 1}, "layer 2 expected 2, found 0; 1 of 5 wrong"),
        ({0: 0, 1: 1, 2: 2, 3: 0}, "layer 4 expected 1, found None; 1 of 5 wrong"),
        ({0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 7: 0}, "layer 7 expected None, found 0; 1 of 6 wrong"),
    ],
)
def test_who_shares_a_slot_matters_and_not_how_slots_are_numbered(found, problem):
    problems = _wrong_slots("slot", RING, found, every=True)
    assert problems == ([f"slot differs: {problem}"] if problem else [])


def test_address_and_offloader_must_agree_on_the_slot():
    case = build_case(PREFETCH)
    pool = BufferPoolInfo(
        slot_capacity=1, num_bytes=2000, slots={1: 1, 3: 1}, refill_after={1: 3, 3: 1}
    )
    finding = judge_placement(case, baseline_run(case), target_run(case, buffer_pool=pool))
    assert finding.verdict is Verdict.FAIL
    assert "slot by address of layer differs: layer 1 expected 1, found 0" in finding.summary


def test_other_layers_with_the_same_bytes_are_called_that_and_nothing_else():
    case = build_case(PREFETCH)
    moved = {1: 0, 0: 1, 3: 2, 2: 3}
    params = tuple(
        p
        if p.layer_idx is None
        else replace(p, layer_idx=moved[p.layer_idx], name=f"layers.{moved[p.layer_idx]}.{i}")
        for i, p in enumerate(build_params(case.expected))
    )
    case = replace(case, expected=replace(case.expected, all_params=()))
    finding = judge_placement(case, baseline_run(case), target_run(case, params=params))
    assert finding.verdict is Verdict.FAIL
    assert finding.summary.startswith(
        "target: other layers are offloaded than computed, with the same bytes: "
        "expected 1, 3, found 0, 2"
    )
    assert "had to be offloaded and are not" not in str(finding.evidence["problems"])


@pytest.mark.parametrize(("max_tokens", "verdict"), [(1, Verdict.PASS), (2, Verdict.VACUOUS)])
def test_no_refill_over_several_passes_is_vacuous(max_tokens, verdict):
    case = build_case(PREFETCH)
    params = replace(case.workload.sampling_params, max_tokens=max_tokens)
    case = replace(case, workload=replace(case.workload, sampling_params=params))
    pool = BufferPoolInfo(slot_capacity=1, num_bytes=2000, slots={1: 0, 3: 0})
    finding = judge_placement(case, baseline_run(case), target_run(case, buffer_pool=pool))
    assert finding.verdict is verdict
    assert finding.evidence["num_refills_observed"] == 0


@pytest.mark.parametrize("side", ["baseline", "target"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "parameters missing from the engine: 1 of 9, embed"),
        ("intruder", "parameters the model does not have: 1, intruder"),
    ],
)
def test_the_engine_has_just_the_parameters_of_the_model(side, name, text):
    case = build_case(UVA)
    runs = {"baseline": baseline_run(case), "target": target_run(case)}
    expected = case.expected if side == "target" else case.expected_baseline
    embed, *rest = build_params(expected)
    params = (embed, replace(embed, name=name), *rest) if name else tuple(rest)
    make = target_run if side == "target" else baseline_run
    runs[side] = make(case, params=params)
    finding = judge_placement(case, runs["baseline"], runs["target"])
    assert finding.verdict is Verdict.FAIL
    assert finding.summary == f"{side}: {text}"


def test_slot_found_by_address_that_differs_fails():
    case = build_case(PREFETCH)
    params = tuple(
        replace(p, slot_idx=5) if p.name == "layers.3.attn" else p
        for p in build_params(case.expected)
    )
    params = tuple(p for p in params if p.name != "layers.3.mlp") + tuple(
        replace(p, slot_idx=5) for p in params if p.name == "layers.3.mlp"
    )
    finding = judge_placement(case, baseline_run(case), target_run(case, params=params))
    assert finding.verdict is Verdict.FAIL
    assert "slot by address of layer differs: layer 3 expected 0, found 5" in finding.summary


def test_unreadable_pool_cannot_tell():
    case = build_case(PREFETCH)
    finding = judge_placement(case, baseline_run(case), target_run(case, buffer_pool=None))
    assert finding.verdict is Verdict.VACUOUS
    assert finding.summary == "target: the buffer pool could not be read"


@pytest.mark.parametrize(("by_address", "verdict"), [(0, Verdict.PASS), (None, Verdict.VACUOUS)])
def test_slots_must_be_read_from_the_offloader_or_found_by_address(by_address, verdict):
    case = build_case(PREFETCH)
    pool = BufferPoolInfo(slot_capacity=1, num_bytes=2000, refill_after={1: 3, 3: 1})
    params = tuple(
        replace(p, slot_idx=by_address) if p.is_offloaded else p
        for p in build_params(case.expected)
    )
    target = target_run(case, buffer_pool=pool, params=params)
    assert judge_placement(case, baseline_run(case), target).verdict is verdict


@pytest.mark.parametrize(("num_bytes", "verdict"), [(0, Verdict.VACUOUS), (8, Verdict.FAIL)])
def test_slots_of_a_pool_that_must_be_empty_do_not_matter_but_its_bytes_do(num_bytes, verdict):
    nothing = {"offloaded_params": (), "offloaded_layers": (), "offloaded_bytes": 0,
               "pool_bytes": 0, "slot_capacity": 0, "slots": {}, "refill_after": {}}  # fmt: skip
    case = build_case(PREFETCH, expected=nothing)
    target = target_run(case, buffer_pool=BufferPoolInfo(slot_capacity=1, num_bytes=num_bytes))
    assert judge_placement(case, baseline_run(case), target).verdict is verdict


def test_refill_does_not_matter_where_every_module_has_a_slot_of_its_own():
    wide = {"pool_bytes": 4000, "slot_capacity": 2, "slots": {1: 0, 3: 1},
            "refill_after": {1: 1, 3: 3}}  # fmt: skip
    case = build_case(PREFETCH, expected=wide)
    pool = BufferPoolInfo(
        slot_capacity=2, num_bytes=4000, slots={1: 0, 3: 1}, refill_after={1: 3, 3: 1}
    )
    target = target_run(case, buffer_pool=pool)
    assert judge_placement(case, baseline_run(case), target).verdict is Verdict.PASS


def test_layers_hold_bytes_by_space_for_the_picture():
    case = build_case(PREFETCH)
    finding = judge_placement(case, baseline_run(case), target_run(case))
    layers = [row["layer"] for row in finding.evidence["layers"]]
    assert layers == [0, 1, 2, 3, None]
    rows = {row["layer"]: row for row in finding.evidence["layers"]}
    assert rows[1] == {
        "layer": 1,
        "device": 0,
        "host": 0,
        "pinned": 2000,
        "slot": 0,
        "expected_offloaded": True,
    }
    assert rows[0]["device"] == 2000
    assert rows[None]["device"] == 5000


def test_a_further_rank_whose_weights_stand_elsewhere_fails():
    case = build_case(PREFETCH)
    case = replace(case, expected_ranks=(case.expected,))
    target = target_run(case)
    probe = replace(target.probe, rank=1)
    right = judge_placement(case, baseline_run(case), replace(target, rank_probes=(probe,)))
    assert right.verdict is Verdict.PASS

    moved = replace(probe, params=tuple(replace(p, is_offloaded=False) for p in probe.params))
    wrong = judge_placement(case, baseline_run(case), replace(target, rank_probes=(moved,)))
    assert wrong.verdict is Verdict.FAIL
    assert wrong.summary.startswith("rank 1: parameters that had to be offloaded and are not")
