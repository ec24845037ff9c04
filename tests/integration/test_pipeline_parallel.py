"""Two pipeline stages, launched: every judge's proof for both ranks, and faults of rank 1 alone."""

from dataclasses import replace

import pytest
import torch

import harness
from harness.core import OffloadConfig, RunKey, RunStatus, Setting, Verdict
from harness.core.runfiles import read_run
from harness.faults import FAULTS
from harness.faults.base import Fault
from harness.faults.weights import host_copies
from harness.judge import judge_case
from harness.launch import Launcher
from harness.plan import build_pair
from harness.settings import load_model, load_workload

from .commandline import run_harness
from .forked import run_with

TWO = {"pipeline_parallel_size": 2}
MODES = {
    "uva": OffloadConfig(cpu_offload_gb=1),
    "uva-copy": OffloadConfig(cpu_offload_gb=1, uva=False),
    "prefetch": OffloadConfig(offload_group_size=1, offload_prefetch_step=3),
    "prefetch-pin0": OffloadConfig(offload_group_size=2, offload_prefetch_step=1, pin_memory=False),
}
JUDGES = {"effect", "placement", "memory", "ordering", "integrity", "tokens"}
CELLS = [(mode, runner) for mode in MODES for runner in ("v1", "v2")]


def workload_of(name="short"):
    work = load_workload(name, load_model("tiny-llama"))
    return replace(work, sampling_params=replace(work.sampling_params, max_tokens=4))


def setting_of(mode, runner="v1", **fields):
    fields = {"engine_args": TWO, "instruments": ("ordering", "integrity"), **fields}
    return Setting(runner=runner, offload=MODES[mode], **fields)


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """`launch(setting, workload)` -> its run; each once."""
    runs = {}
    folder = tmp_path_factory.mktemp("runs")
    with Launcher(folder, jobs=1, num_threads=1, deadline_s=300) as started:

        def run(setting, workload):
            key = RunKey(setting=setting, workload=workload)
            if key.key not in runs:
                runs[key.key] = started.launch(key)
            return runs[key.key]

        yield run


@pytest.fixture
def judged(launch):
    """`judged(setting, workload, run=...)` -> (findings by judge, target run)."""

    def judge(setting, workload, run=None):
        case = build_pair(setting.baseline(), setting, workload).case
        run = run or launch(setting, workload)
        found = judge_case(case, launch(case.baseline, workload), run)
        return {f.judge: f for f in found}, run

    return judge


@pytest.fixture
def launch_with(tmp_path):
    """`launch_with(plant, setting, workload)` -> a run with a fault of the test's own in it."""

    def run(plant, setting, workload):
        fault = Fault(name="of-the-test", summary="", kind="test", after_start=plant)
        return run_with(tmp_path, fault, setting, workload)

    return run


def objections(found):
    return {name: f.summary for name, f in found.items() if f.verdict is not Verdict.PASS}


@pytest.mark.parametrize(("mode", "runner"), CELLS)
def test_both_ranks_are_proven(judged, mode, runner):
    found, run = judged(setting_of(mode, runner), workload_of())

    assert run.status is RunStatus.OK, run.error
    assert objections(found) == {}
    assert set(found) == JUDGES
    for judge in ("placement", "memory", "ordering", "integrity"):
        assert " Rank 1: " in found[judge].summary
    (rank,) = run.rank_probes
    assert rank.rank == 1
    layers = {p.layer_idx for p in rank.params} - {None}
    assert (layers, {p.layer_idx for p in run.probe.params} - {None}) == (
        {4, 5, 6, 7},
        {0, 1, 2, 3},
    )
    assert rank.offloaded_bytes == run.probe.offloaded_bytes > 0
    (row,) = (r for r in found["effect"].evidence["rows"] if r["name"] == "all ranks")
    assert (row["asked"], row["target"], row["ok"]) == (2, 2, True)


@pytest.mark.parametrize("name", ["patch", "sleep-2", "failure"])
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_lifecycles_are_proven_of_both_ranks(judged, name, runner):
    setting = setting_of("prefetch", runner, multiprocessing=runner == "v2")
    found, run = judged(setting, workload_of(name))

    assert run.status is RunStatus.OK, run.error
    assert objections(found) == {}
    assert set(found) == JUDGES
    assert [p.step_idx for p in run.step_rank_probes] == [p.step_idx for p in run.step_probes]
    assert (run.leftover.device_bytes, run.leftover.pinned_bytes) == (0, 0)


def in_rank_1(plant):
    return lambda view: plant(view) if view.worker.rank == 1 else "nothing in rank 0"


def one_wrong_byte(view):
    """In the last layer, whose slot another one had first."""
    name = "model.layers.7.mlp.down_proj.weight"
    host_copies(view)[name].view(-1).view(torch.uint8)[5] ^= 1
    return name


def no_wait_for_copies(view):
    for each in view.offloader.module_offloaders:
        each.wait_for_onload = lambda: None
    return "no waits"


def wrap_around_the_ring(view):
    view.offloader._get_next_prefetch_index = lambda i, step, num: (i + step) % num
    return "wrapped"


def keep_memory(view):
    """As long as the model lives."""
    view.model.kept = view.worker.device.empty((77,), torch.uint8)
    return "77 bytes"


def ignore_reloads(view):
    view.worker.model_runner.reload_weights = lambda path: None
    return "no reloads"


@pytest.mark.parametrize(
    ("plant", "judge", "words"),
    [
        (one_wrong_byte, "integrity", "layers.7.mlp.down_proj.weight"),
        (no_wait_for_copies, "ordering", "(in the target's rank 1)"),
        (wrap_around_the_ring, "placement", "rank 1: refill after layer"),
        (keep_memory, "memory", "Rank 1: the device had to hold"),
    ],
)
def test_a_fault_of_the_last_stage_alone_is_caught(judged, launch_with, plant, judge, words):
    setting, work = setting_of("prefetch"), workload_of()
    found, run = judged(setting, work, launch_with(in_rank_1(plant), setting, work))

    assert run.planted_faults == ("of-the-test",), run.error
    assert found[judge].verdict is Verdict.FAIL
    assert words in found[judge].summary
    assert found["effect"].verdict is Verdict.PASS


def test_weights_of_the_last_stage_that_were_not_reloaded_are_caught(judged, launch_with):
    setting, work = setting_of("uva"), workload_of("reload-changed")
    found, _ = judged(setting, work, launch_with(in_rank_1(ignore_reloads), setting, work))

    assert found["integrity"].verdict is Verdict.FAIL
    assert "after step 1" in found["integrity"].summary


def test_a_wrong_byte_that_a_later_step_mends_is_caught_after_its_own_step(judged, launch_with):
    setting, work = setting_of("uva"), workload_of("reload-same")
    found, run = judged(setting, work, launch_with(in_rank_1(one_wrong_byte), setting, work))

    (rank,) = run.rank_probes
    assert all(set(r.digests) <= {r.expected} for r in rank.integrity.reads)
    assert found["integrity"].verdict is Verdict.FAIL
    assert found["integrity"].summary.startswith("after step 0 (generate): layers.7")


@pytest.mark.parametrize(
    ("fault", "judge"),
    [
        ("no-wait-for-copy", "ordering"),
        ("wrong-refill-target", "placement"),
        ("host-copy-damaged", "integrity"),
    ],
)
def test_faults_of_the_catalogue_are_caught(judged, fault, judge):
    setting = setting_of("prefetch", "v2", faults=(fault,))
    found, run = judged(setting, workload_of())

    assert run.planted_faults == (fault,), run.error
    assert run.status is RunStatus.OK, run.error
    assert judge in FAULTS.get(fault).killed_by
    assert found[judge].verdict is Verdict.FAIL, found[judge].summary


def test_a_control_needs_nothing_offloaded_in_the_last_stage(judged):
    """Of three stages the last has two layers, and groups of three offload none of them."""
    offload = OffloadConfig(offload_group_size=3, offload_prefetch_step=1)
    setting = replace(setting_of("prefetch"), offload=offload)
    setting = replace(setting, engine_args={"pipeline_parallel_size": 3})
    found, _ = judged(setting, workload_of())
    faulty, run = judged(replace(setting, faults=("host-copy-damaged",)), workload_of())

    assert objections(found) == {}
    assert run.planted_faults == ("host-copy-damaged",), run.error
    assert faulty["integrity"].verdict is Verdict.FAIL


def test_unequal_numbers_of_stages_leave_memory_unproven(launch):
    target = setting_of("uva")
    baseline = replace(target.baseline(), engine_args={})
    case = build_pair(baseline, target, workload_of()).case
    found = judge_case(case, launch(baseline, case.workload), launch(target, case.workload))

    words = {f.judge: f for f in found}
    assert words["tokens"].verdict is Verdict.PASS
    assert words["memory"].verdict is Verdict.VACUOUS
    assert "unequal numbers of devices (1 and 2)" in words["memory"].summary


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"pipeline_parallel_size": 9}, "pipeline_parallel_size=9 must be <= num_hidden_layers=8"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size=0 must be an integer >= 1"),
        ({"tensor_parallel_size": 2}, "Unknown engine argument 'tensor_parallel_size'"),
    ],
)
def test_what_cannot_be_spread_is_refused(launch, args, text):
    run = launch(replace(setting_of("uva"), engine_args=args), workload_of())

    assert run.status is RunStatus.UNSUPPORTED
    assert text in run.error


def test_compare_of_two_stages_passes_with_rank_1_in_the_record(tmp_path):
    stages = "--pipeline-parallel-size 2"
    answer = run_harness(
        *("compare", "tiny-llama", "--workload", "short", "-o", tmp_path, "--json"),
        *("--baseline", stages, "--target", f"{stages} --offload-group-size 2"),
    )

    assert 0 == answer.code, answer.out + answer.err
    verdicts = {c["role"]: c["verdict"] for c in answer.json["cases"]}
    assert {"null": "PASS", "control": "FAIL", "case": "PASS"} == verdicts
    (case,) = (r for r in harness.load_run(answer.session).results if r.case.role == "case")
    kept = read_run(answer.session / "runs" / case.target_run_id)
    assert [5, 7] == sorted({p.layer_idx for p in kept.rank_probes[0].params if p.is_offloaded})
