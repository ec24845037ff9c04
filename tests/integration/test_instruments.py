"""Recorders in launched engines: in process, in the core's own process, with and without faults."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.core import OffloadConfig, RunKey, RunStatus, Setting, Verdict
from harness.judge import judge_case
from harness.launch import Launcher
from harness.plan import build_pair
from tests.live import COPYING, PREFETCH, UVA, build_workload

DEFAULT = ("ordering", "integrity")
RING = OffloadConfig(offload_group_size=2, offload_prefetch_step=3)


@pytest.fixture(scope="module")
def judge(tmp_path_factory) -> Iterator:
    """`judge(**fields of Setting)` -> (findings by judge, target run), each setting once."""
    runs = {}
    workload = build_workload()
    with Launcher(tmp_path_factory.mktemp("runs"), jobs=1, deadline_s=120) as launcher:

        def launch(setting):
            key = RunKey(setting=setting, workload=workload)
            if key.key not in runs:
                runs[key.key] = launcher.launch(key)
            assert runs[key.key].status is RunStatus.OK, runs[key.key].error
            return runs[key.key]

        def start(**fields):
            target = Setting(**{"instruments": DEFAULT, **fields})
            case = build_pair(target.baseline(), target, workload).case
            run = launch(target)
            found = judge_case(case, launch(case.baseline), run)
            return {f.judge: f for f in found}, run

        yield start


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("schedule", ["in_order", "seeded", "copy_late", "compute_late"])
@pytest.mark.parametrize(
    "offload", [UVA, COPYING, PREFETCH, RING], ids=["uva", "copying", "prefetch", "ring"]
)
def test_nothing_is_wrong_without_a_fault(judge, runner, schedule, offload):
    found, _ = judge(runner=runner, offload=offload, engine_args={"schedule": schedule})

    assert {name: f.summary for name, f in found.items() if f.verdict is not Verdict.PASS} == {}
    assert {"ordering", "integrity"} < set(found)


def test_the_core_process_records_the_same(judge):
    _, inside = judge(runner="v2", offload=PREFETCH)
    found, apart = judge(runner="v2", offload=PREFETCH, multiprocessing=True)

    assert apart.probe.is_core_process
    assert apart.probe.ordering == inside.probe.ordering
    assert apart.probe.integrity == inside.probe.integrity
    assert found["integrity"].verdict is Verdict.PASS


@pytest.mark.parametrize("fault", ["no-wait-for-copy", "no-wait-for-reader"])
def test_a_removed_wait_is_seen_in_every_schedule_with_the_same_report(judge, fault):
    schedules = [{}, {"schedule": "copy_late"}, {"schedule": "compute_late"}]
    schedules += [{"schedule": "seeded", "schedule_seed": seed} for seed in range(3)]
    reports = set()
    for args in schedules:
        found, run = judge(runner="v2", offload=RING, engine_args=args, faults=(fault,))
        assert found["ordering"].verdict is Verdict.FAIL
        reports.add(run.probe.ordering.races)

    (races,) = reports
    assert len(races) == 4
    assert len({race.missing for race in races}) == 4


def test_a_removed_wait_names_slot_layer_and_copy_while_tokens_are_equal(judge):
    found, _ = judge(runner="v2", offload=RING, faults=("no-wait-for-copy",))

    assert found["tokens"].verdict is Verdict.PASS
    assert found["ordering"].summary.startswith(
        "compute reads slot 0 of layers.1 without waiting for copy "
    )


def test_a_removed_reader_wait_names_what_is_overwritten(judge):
    _, run = judge(runner="v2", offload=RING, faults=("no-wait-for-reader",))

    (race, *_) = run.probe.ordering.races
    assert race.kind == "read-write"
    assert "overwrites slot 0 of layers.1 without waiting for compute" in race.missing
    assert (race.first_stream, race.second_stream) == ("default", "copy")


def test_a_wrong_refill_target_names_whose_bytes_a_layer_holds(judge):
    found, _ = judge(runner="v2", offload=RING, faults=("wrong-refill-target",))

    assert "compute reads slot 0 of layers.7 without" in found["ordering"].summary
    assert found["integrity"].verdict is Verdict.FAIL
    assert "in slot" in found["integrity"].summary
    assert "holds layers." in found["integrity"].summary


def test_poison_changes_nothing_when_order_is_right_and_is_loud_when_it_is_not(judge):
    for schedule in ("in_order", "copy_late", "compute_late"):
        found, run = judge(
            runner="v2",
            offload=RING,
            engine_args={"schedule": schedule},
            instruments=("ordering", "poison"),
        )
        assert {f.verdict for f in found.values()} == {Verdict.PASS}
    found, run = judge(
        runner="v2",
        offload=RING,
        engine_args={"schedule": "copy_late"},
        instruments=("ordering", "poison"),
        faults=("no-wait-for-copy",),
    )

    assert found["tokens"].verdict is Verdict.FAIL
    assert any(value != value for o in run.outputs for value in o.logprobs.chosen)
    assert "the target's log-probabilities are not numbers" in found["tokens"].summary


def test_without_instruments_nothing_is_recorded_and_both_judges_abstain(judge):
    found, run = judge(runner="v2", offload=replace(PREFETCH), instruments=())

    assert run.probe.ordering is run.probe.integrity is None
    assert {"ordering", "integrity"} & set(found) == set()
