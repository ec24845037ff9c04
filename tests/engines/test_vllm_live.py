"""Live vLLM behind its server: the same tokens, the same probe, the same faults as in process.

Needs an interpreter with vLLM, its server's packages and, for runner V2 on a CPU, Triton's
interpreter: HARNESS_VLLM_PYTHON names it.
"""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import harness.launch.launcher
from harness.core import OffloadConfig, RunKey, RunStatus, Setting, Verdict, encode
from harness.core.setting import ENV_MULTIPROCESSING
from harness.judge.placement import judge_placement
from harness.launch import Launcher
from harness.launch.process import ColdChild, wait_for_exit
from harness.plan.build import build_pair
from harness.settings import load_model, load_workload

PYTHON = os.environ.get("HARNESS_VLLM_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="HARNESS_VLLM_PYTHON does not name an interpreter with vLLM"
)

ENV = {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"}
"""Runner V2's kernels in Triton's own interpreter; nothing to compile, so no compiler is needed."""
V1 = Setting(engine="vllm", runner="v1", python=PYTHON or None, env=ENV)
V2 = replace(V1, runner="v2")
PLAIN = replace(V1, engine="vllm-cpu-emulation", instruments=("integrity",))
PREFETCH = replace(
    PLAIN,
    offload=OffloadConfig(offload_group_size=1, offload_prefetch_step=3, pin_memory=False),
)
FAULTY = replace(PREFETCH, server=True, faults=("wrong-refill-target",))
REFUSED = replace(V1, server=True, engine_args={"max_model_len": 100_000})
SETTINGS = {
    "v1": V1,
    "v1 server": replace(V1, server=True),
    "v2": V2,
    "v2 server": replace(V2, server=True),
    "plain": PLAIN,
    "prefetch": PREFETCH,
    "prefetch mp": replace(PREFETCH, multiprocessing=True),
    "prefetch server": replace(PREFETCH, server=True),
    "faulty server": FAULTY,
    "refused server": REFUSED,
}
OF_THE_PROCESS = ("process_id", "is_core_process", "warnings")
"""Of a probe: which process was read, and what vLLM logged in just that one."""
OF_THE_CORE = (
    "distributed_executor_backend",
    "effective_attention_block_size",
    "kv_cache_max_concurrency",
    "kv_cache_size_tokens",
)
"""Of the configuration: how the core reaches its worker, and what it never tells one elsewhere."""


class WatchedChild(ColdChild):
    """Notes who is left in the child's group as it ends, before the launcher ends the group."""

    ended: ClassVar[set[int]] = set()
    left: ClassVar[list[str]] = []

    def wait(self, timeout_s):
        if wait_for_exit(self.pid, timeout_s):
            self.left += members(self.pid)
            self.ended.add(self.pid)
        return super().wait(timeout_s)


def members(group):
    """Command lines of the living processes of a group."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state, _, its = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its) == group and state not in "ZX":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.launch.launcher, "ColdChild", WatchedChild)
        with Launcher(tmp_path_factory.mktemp("runs"), jobs=2, deadline_s=300) as launcher:
            yield launcher


@pytest.fixture(scope="module")
def workload():
    return load_workload("short", load_model("tiny-llama"))


@pytest.fixture(scope="module")
def run(launcher, workload):
    """`run(name)` -> the run of that setting; all are launched once, two at a time."""
    with ThreadPoolExecutor(len(SETTINGS)) as pool:
        futures = {
            name: pool.submit(launcher.launch, RunKey(setting=setting, workload=workload))
            for name, setting in SETTINGS.items()
        }
        yield lambda name: futures[name].result()
        launcher.interrupt()


def succeed(found):
    assert found.status is RunStatus.OK, "\n".join([str(found.error), *found.log_tail])
    return found


def same_of(probe):
    """What two probes of one setting must agree in."""
    fields = {k: v for k, v in encode(probe).items() if k not in OF_THE_PROCESS}
    del fields["memory"]["device_peak_bytes"], fields["env"][ENV_MULTIPROCESSING]
    fields["memory"].pop("process", None)
    for name in OF_THE_CORE:
        fields["effective_config"].pop(name, None)
    if fields["integrity"] is not None:
        del fields["integrity"]["num_reads"]
    return fields


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_server_gives_the_tokens_and_log_probabilities_of_the_engine_in_process(run, runner):
    served, here = succeed(run(f"{runner} server")), succeed(run(runner))
    assert [o.token_ids for o in served.outputs] == [o.token_ids for o in here.outputs]
    assert [len(o.token_ids) for o in served.outputs] == [8, 8]
    for one, other in zip(served.outputs, here.outputs, strict=True):
        assert one.finish_reason == other.finish_reason == "length"
        assert one.logprobs.top_token_ids == other.logprobs.top_token_ids
        assert one.logprobs.chosen == pytest.approx(other.logprobs.chosen, abs=1e-4)


@pytest.mark.parametrize(
    ("place", "reference"),
    [
        ("v1 server", "v1"),
        ("v2 server", "v2"),
        ("prefetch server", "prefetch"),
        ("prefetch mp", "prefetch"),
    ],
)
def test_a_probe_reads_the_same_wherever_the_engine_lives(run, place, reference):
    far, near = succeed(run(place)).probe, succeed(run(reference)).probe
    assert far.is_core_process
    assert not near.is_core_process
    assert same_of(far) == same_of(near)
    assert set(far.warnings) <= set(near.warnings), "in process, its front end's are there too"
    assert near.warnings


def test_offload_behind_a_server_has_the_tokens_and_the_placement_of_offload_in_process(
    run, workload
):
    served = succeed(run("prefetch server"))
    tokens = [o.token_ids for o in succeed(run("plain")).outputs]
    assert [o.token_ids for o in served.outputs] == tokens
    assert placement_of(run, workload, "prefetch server").verdict is Verdict.PASS


def test_a_fault_planted_behind_a_server_is_live_there_and_found(run, workload):
    assert succeed(run("faulty server")).planted_faults == ("wrong-refill-target",)
    assert placement_of(run, workload, "faulty server").verdict is Verdict.FAIL


def placement_of(run, workload, name):
    setting = SETTINGS[name]
    case = build_pair(setting.baseline(), setting, workload).case
    return judge_placement(case, run("plain"), run(name))


def test_a_setting_that_the_server_refuses_is_unsupported_with_vllms_own_reason(run):
    refused = run("refused server")
    assert refused.status is RunStatus.UNSUPPORTED
    assert "max_model_len (100000) is greater than" in refused.error
    assert "\n" not in refused.error
    assert "type=" not in refused.error


def test_no_process_of_a_server_outlives_its_run(run):
    for name in SETTINGS:
        run(name)
    assert len(WatchedChild.ended) >= sum(setting.server for setting in SETTINGS.values())
    assert WatchedChild.left == []


DIRECT = """
import json, sys
from harness.engines.vllm.args import engine_kwargs
from harness.engines.vllm.server import ServerDoor
from harness.core import Setting, Workload, decode
setting, workload = (json.loads(text) for text in sys.argv[1:3])
workload = decode(Workload, workload)
door = ServerDoor(engine_kwargs(decode(Setting, setting), workload, is_cpu=True), num_threads=1)
info, probe = door.server_info(), door.rpc("harness_probe", ())
door.shutdown()
door.shutdown()
with open(sys.argv[3], "w") as file:
    json.dump({"config": info["vllm_config"], "probes": probe}, file)
"""


def test_the_servers_own_word_on_its_configuration_is_what_the_probe_reads(
    launcher, workload, tmp_path
):
    setting = replace(V1, server=True)
    answer = tmp_path / "answer.json"
    argv = [PYTHON, "-c", DIRECT, json.dumps(encode(setting)), json.dumps(encode(workload))]
    env = launcher._environment(setting)
    done = subprocess.run(
        [*argv, str(answer)], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(answer.read_text())
    (probe,) = found["probes"]
    said, read = found["config"]["model_config"], probe["effective_config"]
    for name in ("model", "enforce_eager", "max_model_len", "seed", "skip_tokenizer_init"):
        assert said[name] == read[name], name
    assert said["model"] == workload.model.path
    assert said["enforce_eager"] is True
