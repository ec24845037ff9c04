"""Lifecycles of the reference engine, launched: every step probed, judged and paid back."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.core import OffloadConfig, RunKey, RunStatus, Setting, Step, Verdict
from harness.judge import judge_case
from harness.launch import Launcher
from harness.plan import build_pair
from harness.settings import load_model, load_workload

MODES = {
    "uva": OffloadConfig(cpu_offload_gb=1),
    "uva-copy": OffloadConfig(cpu_offload_gb=1, uva=False),
    "prefetch": OffloadConfig(offload_group_size=1, offload_prefetch_step=3),
}
PREFETCHED = ("reload-changed", "patch", "sleep-1", "sleep-2", "failure", "abort", "engine-beside")
CELLS = [(name, runner, "prefetch") for name in PREFETCHED for runner in ("v1", "v2")]
CELLS += [
    *(("reload-changed", "v2", "uva"), ("sleep-2", "v1", "uva"), ("engine-before", "v2", "uva")),
    *(("failure", "v1", "uva-copy"), ("sleep-1", "v2", "uva-copy"), ("patch", "v1", "uva-copy")),
]
NUM_CYCLES = 3


def workload_of(name, max_tokens=4):
    work = load_workload(name, load_model("tiny-llama"))
    return replace(work, sampling_params=replace(work.sampling_params, max_tokens=max_tokens))


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Iterator:
    """`judged(workload, **fields of Setting)` -> (findings by judge, target run)."""
    runs = {}
    with Launcher(
        tmp_path_factory.mktemp("runs"), jobs=1, num_threads=1, deadline_s=300
    ) as started:

        def launch(setting, workload):
            key = RunKey(setting=setting, workload=workload)
            if key.key not in runs:
                runs[key.key] = started.launch(key)
            return runs[key.key]

        def judge(workload, **fields):
            target = Setting(**{"instruments": ("ordering", "integrity"), **fields})
            case = build_pair(target.baseline(), target, workload).case
            run = launch(target, workload)
            found = judge_case(case, launch(case.baseline, workload), run)
            return {f.judge: f for f in found}, run

        yield judge


def objections(found):
    return {name: f.summary for name, f in found.items() if f.verdict is not Verdict.PASS}


def left(run):
    return [run.leftover.device_bytes, run.leftover.pinned_bytes, run.leftover.host_bytes]


@pytest.mark.parametrize(("name", "runner", "mode"), CELLS)
def test_every_lifecycle_passes_and_every_byte_comes_back(judged, name, runner, mode):
    found, run = judged(workload_of(name), runner=runner, offload=MODES[mode])

    assert run.status is RunStatus.OK, run.error
    assert objections(found) == {}
    assert {"effect", "placement", "memory", "ordering", "integrity", "tokens"} == set(found)
    assert left(run) == [0, 0, 0]


@pytest.mark.parametrize("name", ["sleep-2", "failure", "abort"])
def test_lifecycle_passes_with_the_core_in_a_process_of_its_own(judged, name):
    found, run = judged(
        workload_of(name), runner="v2", offload=MODES["prefetch"], multiprocessing=True
    )

    assert run.probe is not None, run.error
    assert run.probe.is_core_process
    assert objections(found) == {}
    assert left(run) == [0, 0, 0]


@pytest.mark.parametrize(("name", "runner"), [("sleep-cycles", "v1"), ("reload-cycles", "v2")])
def test_cycles_leak_no_byte(judged, name, runner):
    work = workload_of(name)
    cycle = 3 if name == "sleep-cycles" else 4
    work = replace(work, steps=work.steps[: 1 + NUM_CYCLES * cycle])
    found, run = judged(work, runner=runner, offload=MODES["prefetch"])

    assert objections(found) == {}
    held = [
        (probe.memory.device_bytes, probe.memory.pinned_bytes, probe.memory.host_bytes)
        for probe in run.step_probes
        if work.steps[probe.step_idx].kind == "generate"
    ]
    assert len(held) == 1 + NUM_CYCLES * (1 if name == "sleep-cycles" else 2)
    assert set(held) == {held[0]}
    assert left(run) == [0, 0, 0]


def test_memory_of_the_device_falls_while_asleep(judged):
    _, run = judged(workload_of("sleep-1"), runner="v1", offload=MODES["prefetch"])

    awake, asleep, woken = (run.step_probes[idx] for idx in (0, 1, 2))
    assert [probe.is_asleep for probe in (awake, asleep, woken)] == [False, True, False]
    assert asleep.memory.by_kind.keys() <= {"state"}
    assert asleep.memory.device_bytes < awake.memory.device_bytes / 10
    resident = awake.memory.by_kind["weights"]
    assert asleep.memory.host_bytes == awake.memory.host_bytes + resident
    assert woken.memory.device_bytes == awake.memory.device_bytes


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step(kind="sleep", args={"level": 1, "tags": ["weights"]}), "no argument 'tags'"),
        (Step(kind="fail_forward"), "needs the argument 'layer'"),
        (Step(kind="wake_up"), "the engine is awake"),
        (Step(kind="fail_forward", args={"layer": 8}), "layer=8 must be within 0..7"),
    ],
)
def test_step_that_cannot_be_done_is_refused_with_its_reason(judged, step, text):
    work = replace(workload_of("generates"), steps=(step, Step()))
    _, run = judged(work, runner="v2", offload=MODES["uva"])

    assert run.status is RunStatus.UNSUPPORTED
    assert text in run.error


def test_generate_while_asleep_is_refused(judged):
    steps = (Step(kind="sleep", args={"level": 2}), Step(kind="wake_up"), Step())
    work = replace(workload_of("generates"), steps=steps)
    _, run = judged(work, runner="v1", offload=MODES["uva"])

    assert run.status is RunStatus.UNSUPPORTED
    assert "hold nothing" in run.error
