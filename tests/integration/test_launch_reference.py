"""The reference engine through the launcher: warm, cold, in its own core process, with faults."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.core import OffloadConfig, RunKey, RunStatus, Setting
from harness.launch import Launcher
from tests.live import COPYING, PREFETCH, UVA, build_workload

both_runners = pytest.mark.parametrize("runner", ["v1", "v2"])


@pytest.fixture(scope="module")
def launch(tmp_path_factory) -> Iterator:
    """`launch(**fields of Setting)` -> Run, each setting once."""
    runs = {}
    with Launcher(tmp_path_factory.mktemp("runs"), jobs=1, deadline_s=120) as launcher:

        def start(**fields):
            key = RunKey(setting=Setting(**fields), workload=build_workload())
            if key.key not in runs:
                runs[key.key] = launcher.launch(key)
            return runs[key.key]

        start.launcher = launcher
        yield start


def tokens(run):
    assert run.status is RunStatus.OK, (run.error, run.log_tail)
    return [o.token_ids for o in run.outputs]


def log_of(launch, run):
    return (launch.launcher.runs_dir / run.run_id / "log.txt").read_text()


@both_runners
@pytest.mark.parametrize("offload", [UVA, COPYING, PREFETCH], ids=["uva", "copying", "prefetch"])
def test_offload_takes_effect_and_changes_no_output(launch, runner, offload):
    baseline = launch(runner=runner)
    target = launch(runner=runner, offload=offload)

    assert target.warm
    assert target.outputs == baseline.outputs
    assert (target.probe.runner, target.probe.drift) == (runner, ())
    assert target.probe.offloaded_bytes == target.probe.reported_offloaded_bytes > 0
    assert baseline.probe.offloaded_bytes == 0


@both_runners
def test_cold_and_warm_launches_observe_the_same(launch, tmp_path, runner):
    key = RunKey(setting=Setting(runner=runner, offload=PREFETCH), workload=build_workload())
    warm = launch(runner=runner, offload=PREFETCH)
    with Launcher(tmp_path, jobs=1, cold=True, deadline_s=120) as launcher:
        cold = launcher.launch(key)

    assert (warm.warm, cold.warm) == (True, False)
    assert warm.outputs == cold.outputs
    assert placed(warm.probe) == placed(cold.probe)
    assert warm.host == cold.host


def placed(probe):
    """A probe without what is of the one process: its number and its own memory."""
    return replace(probe, process_id=0, memory=replace(probe.memory, process=None))


@both_runners
def test_a_core_process_of_its_own_observes_the_same(launch, runner):
    inside = launch(runner=runner, offload=PREFETCH)
    apart = launch(runner=runner, offload=PREFETCH, multiprocessing=True)

    assert apart.outputs == inside.outputs
    assert (inside.probe.is_core_process, apart.probe.is_core_process) == (False, True)
    assert apart.probe.params == inside.probe.params
    assert apart.probe.buffer_pool == inside.probe.buffer_pool


@pytest.mark.parametrize("multiprocessing", [False, True], ids=["inproc", "mp"])
def test_an_offloader_never_installed_leaves_equal_tokens_and_no_effect(launch, multiprocessing):
    target = launch(
        runner="v2",
        offload=PREFETCH,
        multiprocessing=multiprocessing,
        faults=("offloader-not-installed",),
    )

    assert tokens(target) == tokens(launch(runner="v2"))
    assert target.probe.offloader_class == "NoopOffloader"
    assert target.probe.offloaded_bytes == 0
    assert "fault offloader-not-installed is planted" in log_of(launch, target)


def test_an_offloader_never_installed_on_v2_leaves_v1_alone(launch):
    target = launch(runner="v1", offload=PREFETCH, faults=("offloader-not-installed",))

    assert target.probe.offloader_class == "PrefetchOffloader"
    assert "does not apply" in log_of(launch, target)


@both_runners
@pytest.mark.parametrize("multiprocessing", [False, True], ids=["inproc", "mp"])
@pytest.mark.parametrize("offload", [UVA, COPYING, PREFETCH], ids=["uva", "copying", "prefetch"])
def test_the_control_changes_outputs_in_every_mode(launch, runner, multiprocessing, offload):
    damaged = launch(
        runner=runner,
        offload=offload,
        multiprocessing=multiprocessing,
        faults=("host-copy-damaged",),
    )

    assert tokens(damaged) != tokens(launch(runner=runner))


def test_the_control_on_an_offload_without_effect_is_a_crash_not_a_pass(launch):
    nothing = OffloadConfig(cpu_offload_gb=1.0, cpu_offload_params=frozenset({"no_such_part"}))

    run = launch(runner="v2", offload=nothing, faults=("host-copy-damaged",))

    assert run.status is RunStatus.CRASH
    assert "planting a fault" in run.error
    assert "found no offloaded parameter" in run.error


def test_a_flag_that_is_ignored_shows_on_the_live_tensors(launch):
    unpinned = replace(PREFETCH, pin_memory=False)
    honest = launch(runner="v2", offload=unpinned)
    ignored = launch(runner="v2", offload=unpinned, faults=("pin-flag-ignored",))

    assert not any(p.is_pinned for p in honest.probe.params)
    assert any(p.is_pinned for p in ignored.probe.params)
    assert tokens(honest) == tokens(ignored)


@both_runners
def test_a_wrong_refill_target_shows_in_the_refills_and_the_tokens(launch, runner):
    wrong = launch(runner=runner, offload=PREFETCH, faults=("wrong-refill-target",))

    assert wrong.probe.buffer_pool.refill_after == {2: 7, 3: 2, 6: 3, 7: 6}
    assert tokens(wrong) != tokens(launch(runner=runner))


@both_runners
@pytest.mark.parametrize(
    ("fault", "schedule"),
    [("no-wait-for-copy", "copy_late"), ("no-wait-for-reader", "compute_late")],
)
def test_a_missing_wait_shows_under_its_adverse_schedule(launch, runner, fault, schedule):
    adverse = {"schedule": schedule}
    clean = launch(runner=runner, offload=PREFETCH, engine_args=adverse)
    racing = launch(runner=runner, offload=PREFETCH, engine_args=adverse, faults=(fault,))

    assert tokens(clean) == tokens(launch(runner=runner))
    assert tokens(racing) != tokens(clean)


def test_refusals_and_lack_of_memory_are_no_crashes(launch):
    refused = launch(runner="v2", enforce_eager=False, engine_args={"device": "cuda"})
    full = launch(runner="v2", engine_args={"device_memory_bytes": 1_000_000})

    assert (refused.status, full.status) == (RunStatus.UNSUPPORTED, RunStatus.OOM)
    assert "enforce_eager=False" in refused.error
    assert "out of device memory" in full.error
    apart = launch(
        runner="v2", multiprocessing=True, engine_args={"device_memory_bytes": 1_000_000}
    )
    assert apart.status is RunStatus.OOM
