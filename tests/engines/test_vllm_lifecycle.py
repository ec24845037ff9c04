"""Live vLLM through a lifecycle: what each step does to the live worker, and what is refused.

Needs an interpreter as tests/engines/test_vllm_live.py does: HARNESS_VLLM_PYTHON names it.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from harness.core import RunKey, RunStatus, Setting
from harness.launch import Launcher
from harness.settings import load_model, load_workload

PYTHON = os.environ.get("HARNESS_VLLM_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="HARNESS_VLLM_PYTHON does not name an interpreter with vLLM"
)

ENV = {"TRITON_INTERPRET": "1"}
PLAIN = Setting(
    engine="vllm-cpu-emulation",
    runner="v1",
    python=PYTHON or None,
    env=ENV,
    instruments=("integrity",),
)
RUNS = {
    "changed apart": (replace(PLAIN, multiprocessing=True), "reload-changed"),
    "sleep": (PLAIN, "sleep-1"),
    "patch": (PLAIN, "patch"),
    "failure": (PLAIN, "failure"),
    "server": (replace(PLAIN, server=True), "reload-same"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(name)` -> the run of that name; all are launched once, two at a time."""
    model = load_model("tiny-llama")
    with (
        Launcher(
            tmp_path_factory.mktemp("runs"), jobs=2, num_threads=1, deadline_s=300
        ) as launcher,
        ThreadPoolExecutor(2) as pool,
    ):
        futures = {
            name: pool.submit(
                launcher.launch, RunKey(setting=setting, workload=load_workload(work, model))
            )
            for name, (setting, work) in RUNS.items()
        }
        yield lambda name: futures[name].result()
        launcher.interrupt()


def succeed(found):
    assert found.status is RunStatus.OK, "\n".join([str(found.error), *found.log_tail])
    return found


def answers(found):
    """Tokens of each generate."""
    by_step = {}
    for output in found.outputs:
        by_step.setdefault(output.step_idx, []).append(output.token_ids)
    return list(by_step.values())


def expected_of(probe):
    return {reads.name: reads.expected for reads in probe.integrity.reads}


def test_a_reload_in_a_core_process_is_held_against_the_new_checkpoint(run):
    found = succeed(run("changed apart"))
    before, *after = answers(found)
    assert len(after) == 3
    assert before != after[0] == after[1] == after[2]
    first, reloaded, *_ = found.step_probes
    assert expected_of(first) != expected_of(reloaded)
    for reads in reloaded.integrity.reads:
        assert {reads.expected} == set(reads.digests), reads.name


def test_a_sleep_that_vllm_ignores_is_not_taken_for_one(run):
    found = succeed(run("sleep"))
    assert [probe.is_asleep for probe in found.step_probes] == [False] * 5
    assert len({probe.memory.device_bytes for probe in found.step_probes}) == 1


def test_a_method_that_the_worker_lacks_is_unsupported_by_its_name(run):
    refused = run("patch")
    assert refused.status is RunStatus.UNSUPPORTED
    assert refused.error == "the worker of this release has no method apply_sparse_weight_patches"


def test_a_step_that_vllm_has_no_way_to_do_is_unsupported(run):
    refused = run("failure")
    assert refused.status is RunStatus.UNSUPPORTED
    assert "step kind='fail_forward' is not supported" in refused.error


def test_behind_a_server_a_step_is_refused_in_one_line(run):
    refused = run("server")
    assert refused.status is RunStatus.UNSUPPORTED
    assert refused.error == "step 'reload_weights same' is done in process only, not by a server"
