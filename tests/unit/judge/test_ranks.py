"""Further ranks are judged as rank 0 is: memory, placement, order, integrity and each step."""

from dataclasses import replace

import pytest

from harness.core import (
    IntegrityTrace,
    MemoryTrace,
    OrderingTrace,
    Race,
    Step,
    Verdict,
    WeightReads,
)
from harness.judge import judge_case
from harness.judge.effect import judge_effect
from harness.judge.integrity import judge_integrity
from harness.judge.memory import judge_memory
from harness.judge.ordering import judge_ordering
from harness.judge.placement import judge_placement
from harness.judge.sleep import judge_sleep
from harness.judge.updates import unproven_update
from tests.builders import (
    NONE,
    PREFETCH,
    UVA,
    baseline_run,
    build_case,
    build_expectation,
    build_memory,
    build_params,
    target_run,
)

TRACE = OrderingTrace(num_work=100, num_copies=20, num_checked=300, num_pool_checked=90)
BARE = replace(TRACE, num_copies=0, num_pool_checked=0)


def two_ranks(offload=PREFETCH, **expected):
    """A case whose second rank expects what the first does, but for `expected`."""
    case = build_case(offload)
    args = {"pipeline_parallel_size": 2}
    sides = [replace(each, engine_args=args) for each in (case.baseline, case.target)]
    sides = [replace(each, instruments=("ordering", "integrity")) for each in sides]
    further = replace(case.expected, **expected)
    return replace(
        case,
        baseline=sides[0],
        target=sides[1],
        expected_ranks=(further,),
        expected_baseline_ranks=(case.expected_baseline,),
    )


def both(case, *, left=None, right=None, **all_ranks):
    """Both sides' runs; `left` and `right` change the probe of rank 1."""
    probes = {}
    for name, run, changes in (
        ("baseline", baseline_run(case), left),
        ("target", target_run(case), right),
    ):
        config = {**run.probe.effective_config, "pipeline_parallel_size": 2}
        probe = replace(run.probe, effective_config=config, **all_ranks)
        rank = replace(probe, rank=1, **(changes or {}))
        probes[name] = replace(run, setting=getattr(case, name), probe=probe, rank_probes=(rank,))
    return probes


def idle(case):
    """Changes of the second rank's probe that holds the model, and offloads none of it."""
    bare = build_expectation(case.target.baseline())
    return {
        "params": build_params(bare),
        "reported_offloaded_bytes": 0,
        "memory": build_memory(bare),
        "buffer_pool": None,
    }


NOTHING = {
    "offloaded_params": (),
    "offloaded_layers": (),
    "offloaded_bytes": 0,
    "pool_bytes": 0,
    "slot_capacity": 0,
    "slots": {},
    "refill_after": {},
}


def test_memory_of_each_rank_is_proven():
    case = two_ranks()
    found = judge_memory(case, **both(case))

    assert found.verdict is Verdict.PASS
    assert " Rank 1: The device holds 2,000 bytes less" in found.summary
    assert len(found.evidence["ranks"]) == 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_memory_of_the_second_device_alone_fails(side):
    case = two_ranks()
    expected = case.expected if side == "right" else case.expected_baseline
    memory = build_memory(expected)
    changes = {"memory": replace(memory, device_bytes=memory.device_bytes + 1)}
    found = judge_memory(case, **both(case, **{side: changes}))

    assert found.verdict is Verdict.FAIL
    assert found.summary.startswith("Rank 1: the device had to hold 2,000 bytes less")


def test_a_rank_without_a_counterpart_leaves_memory_unproven():
    case = two_ranks()
    runs = both(case)
    runs["baseline"] = replace(runs["baseline"], rank_probes=())
    found = judge_memory(case, **runs)

    assert found.verdict is Verdict.VACUOUS
    assert "unequal numbers of devices (1 and 2)" in found.summary


def test_a_rank_of_the_baseline_that_offloads_fails_placement():
    case = two_ranks()
    params = target_run(case).probe.params
    found = judge_placement(case, **both(case, left={"params": params}))

    assert found.verdict is Verdict.FAIL
    assert found.summary.startswith("baseline's rank 1: parameters offloaded unexpectedly")


def test_refills_that_were_not_seen_in_the_second_rank_are_vacuous():
    case = two_ranks()
    pool = replace(target_run(case).probe.buffer_pool, refill_after={})
    found = judge_placement(case, **both(case, right={"buffer_pool": pool}))

    assert found.verdict is Verdict.VACUOUS
    assert found.summary.startswith("rank 1: no refill")


def test_a_rank_whose_layers_are_none_that_are_offloaded_passes_everywhere():
    case = two_ranks(**NOTHING)
    runs = both(case, left={"ordering": BARE}, right={**idle(case), "ordering": BARE})
    for name, ordering in (("baseline", BARE), ("target", TRACE)):
        run = runs[name]
        runs[name] = replace(run, probe=replace(run.probe, ordering=ordering))

    for judge in (judge_effect, judge_placement, judge_memory, judge_ordering):
        found = judge(case, **runs)
        assert found.verdict is Verdict.PASS, found.summary


def test_a_rank_that_offloads_against_what_was_computed_is_told():
    case = two_ranks(**NOTHING)
    found = judge_effect(case, **both(case))

    assert found.verdict is Verdict.VACUOUS
    assert found.summary.startswith("rank 1 holds an offloaded parameter, it must not")


@pytest.mark.parametrize(("field", "word"), [("is_pinned", "pinned"), ("is_uva", "views")])
def test_how_a_rank_holds_its_weights_is_held_against_its_own_expectation(field, word):
    """Also where rank 0 has nothing that it could be compared with."""
    case = two_ranks(UVA)
    runs = both(case)
    nothing = replace(case.expected, **NOTHING)
    case = replace(case, expected=nothing, expected_ranks=(case.expected,))
    run = runs["target"]
    (rank,) = run.rank_probes
    params = [replace(p, **{field: not getattr(p, field)}) for p in rank.params]
    bare = replace(run.probe, **idle(case))
    wrong = replace(run, probe=bare, rank_probes=(replace(rank, params=tuple(params)),))

    right = judge_effect(case, runs["baseline"], replace(run, probe=bare))
    found = judge_effect(case, runs["baseline"], wrong)

    assert right.verdict is Verdict.PASS, right.summary
    assert found.verdict is Verdict.VACUOUS
    assert "rank 1 has" in found.summary
    assert word in found.summary


def test_memory_of_a_rank_that_was_not_read_is_left_to_the_effect_judge():
    case = two_ranks()
    runs = both(case)
    nothing = replace(
        case, expected=case.expected_baseline, expected_ranks=case.expected_baseline_ranks
    )
    alone = replace(runs["baseline"], rank_probes=())

    assert judge_memory(nothing, alone, runs["baseline"]) is None


def test_a_rank_that_copies_nothing_although_it_must_is_vacuous():
    case = two_ranks()
    runs = both(case, left={"ordering": BARE}, right={"ordering": BARE}, ordering=TRACE)
    found = judge_ordering(case, **runs)

    assert found.verdict is Verdict.VACUOUS
    assert "no copy was seen on the target's rank 1" in found.summary


def test_a_race_of_the_second_rank_alone_fails():
    race = Race(
        kind="write-read",
        resource="slot 0",
        first_site="copy",
        second_site="model.layers.3.mlp",
        first_stream="copy",
        second_stream="default",
        missing="compute reads slot 0 without waiting",
        count=1,
    )
    case = two_ranks()
    raced = {"ordering": replace(TRACE, races=(race,))}
    found = judge_ordering(case, **both(case, right=raced, ordering=TRACE))

    assert found.verdict is Verdict.FAIL
    assert "without waiting (in the target's rank 1)" in found.summary


def integrity(digest="a", expected="a"):
    reads = WeightReads(name="embed", layer_idx=None, expected=expected, digests={digest: 1})
    return IntegrityTrace(mode="full", num_reads=1, num_hashed=1, reads=(reads,))


def test_ranks_held_against_other_bytes_on_each_side_fail():
    case = two_ranks(UVA)
    runs = both(case, right={"integrity": integrity("b", "b")}, integrity=integrity())
    found = judge_integrity(case, **runs)

    assert found.verdict is Verdict.FAIL
    assert "embed is held against other bytes on each side" in found.summary


def test_sides_that_are_spread_unequally_hold_other_parts_and_are_not_compared():
    case = two_ranks(UVA)
    runs = both(case, right={"integrity": integrity("b", "b")}, integrity=integrity())
    alone = replace(runs["baseline"], rank_probes=())
    found = judge_integrity(case, alone, runs["target"])

    assert found.verdict is not Verdict.FAIL


def lifecycle(case, run, steps, traces):
    """The run with a probe of each rank after each step; `traces`: rank -> integrity by step."""
    found = {0: run.probe, 1: run.rank_probes[0]}
    probes = [
        replace(found[rank], step_idx=step_idx, integrity=trace)
        for rank, each in traces.items()
        for step_idx, trace in enumerate(each)
    ]
    assert len(probes) == 2 * len(steps)
    return replace(
        run,
        step_probes=tuple(p for p in probes if p.rank == 0),
        step_rank_probes=tuple(p for p in probes if p.rank == 1),
    )


def test_a_wrong_weight_of_the_second_rank_at_one_step_fails_that_step():
    steps = (Step(), Step(), Step())
    case = two_ranks(UVA)
    case = replace(case, workload=replace(case.workload, steps=steps), judges=("integrity",))
    right = [integrity()] * 3
    runs = both(case, integrity=integrity())
    wrong = {0: right, 1: [integrity(), integrity("z"), integrity()]}
    baseline = lifecycle(case, runs["baseline"], steps, {0: right, 1: right})

    (found,) = judge_case(case, baseline, lifecycle(case, runs["target"], steps, wrong))
    assert found.verdict is Verdict.FAIL
    assert found.summary.startswith("after step 1 (generate): embed holds bytes that are no")


def test_a_patch_that_only_the_second_rank_holds_is_an_update():
    patch = Step(kind="apply_sparse_weight_patches", args={"params": []})
    steps = (Step(), patch, Step())
    case = two_ranks(NONE)
    case = replace(case, workload=replace(case.workload, steps=steps))
    same, new = [integrity()] * 3, [integrity(), integrity("b", "b"), integrity("b", "b")]
    run = both(case)["baseline"]

    assert unproven_update(case, lifecycle(case, run, steps, {0: same, 1: new})) == ""
    assert unproven_update(case, lifecycle(case, run, steps, {0: same, 1: same})) != ""


def test_a_sleep_that_freed_nothing_in_the_second_rank_is_vacuous():
    steps = (Step(), Step(kind="sleep", args={"level": 1}), Step(kind="wake_up"), Step())
    case = two_ranks(UVA)
    case = replace(case, workload=replace(case.workload, steps=steps))
    runs = both(case)
    for name, run in runs.items():
        done = lifecycle(case, run, steps, {0: [None] * 4, 1: [None] * 4})
        awake = replace(done.step_probes[1], is_asleep=True)
        memory = MemoryTrace(device_bytes=0, device_peak_bytes=0)
        asleep = replace(awake, memory=memory)
        runs[name] = replace(done, step_probes=(done.step_probes[0], asleep))

    found = judge_sleep(case, **runs)
    assert found.verdict is Verdict.VACUOUS
    assert "freed nothing on the target's rank 1" in found.summary
