import json
import logging
import os
import signal
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from harness.core import LaunchError, RunStatus, Setting, Step
from harness.core.runfiles import RUN_FILE, read_run
from harness.launch import Launcher, child_environment, warm
from harness.launch import launcher as launcher_module
from harness.launch.absent import Absences
from harness.launch.process import ColdChild, wait_for_exit
from harness.launch.request import LOG_FILE, LaunchRequest, read_request, write_request
from harness.launch.warm_parent import WarmParent

from .conftest import build_key

BOTH_WAYS = pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])


def log_of(launcher, key):
    return (launcher.runs_dir / key.key / LOG_FILE).read_text()


def wait_until_active(launcher, num=1):
    with launcher._changed:
        assert launcher._changed.wait_for(lambda: len(launcher._active) == num, 60)
        return list(launcher._active.values())


def only_parent(launcher):
    (parent,) = launcher._warm.values()
    return parent


def is_gone(pid):
    try:
        return wait_for_exit(pid, 30)
    except ProcessLookupError:
        return True


@BOTH_WAYS
def test_a_run_comes_back_whole_and_equals_its_folder(make_launcher, cold):
    launcher = make_launcher(cold=cold, num_threads=2)
    key = build_key({"token_ids": [[7, 8], [9]]}, runner="v1")

    run = launcher.launch(key)

    assert run.status is RunStatus.OK
    assert run.setting == key.setting
    assert [o.token_ids for o in run.outputs] == [(7, 8), (9,)]
    assert run.probe.runner == "v1"
    assert run.warm is not cold
    assert run.host.num_threads == 2
    assert {"spawn", "import", "load", "generate", "probe", "total"} <= set(run.timings)
    folder = launcher.runs_dir / key.key
    assert read_run(folder) == run
    assert read_request(folder).workload == key.workload


def test_cold_and_warm_launches_observe_the_same(make_launcher):
    key = build_key({"report_env": True}, runner="v2", env={"VLLM_X": "1"})
    runs = [make_launcher(cold=cold).launch(key) for cold in (False, True)]

    assert [run.warm for run in runs] == [True, False]
    assert runs[0].outputs == runs[1].outputs
    envs = [dict(run.probe.env) for run in runs]
    assert envs[0] == envs[1]
    assert replace(runs[0].probe, process_id=0) == replace(runs[1].probe, process_id=0)


@BOTH_WAYS
def test_the_callers_environment_does_not_reach_the_child(make_launcher, monkeypatch, cold):
    monkeypatch.setenv("VLLM_LEAKED", "1")
    monkeypatch.setenv("SOME_VARIABLE", "1")

    run = make_launcher(cold=cold).launch(build_key({"report_env": True}, env={"VLLM_X": "1"}))

    assert not {"VLLM_LEAKED", "SOME_VARIABLE"} & set(run.probe.env)
    assert run.probe.env["VLLM_X"] == "1"


@BOTH_WAYS
@pytest.mark.parametrize(
    ("script", "status", "error"),
    [
        ({"start": {"refuse": "no such flag"}}, RunStatus.UNSUPPORTED, "no such flag"),
        ({"generate": {"oom": "too big"}}, RunStatus.OOM, "too big"),
        ({"probe": {"crash": "a\nb"}}, RunStatus.CRASH, "RuntimeError in probe: a b"),
        ({"shutdown": {"crash": "late"}}, RunStatus.CRASH, "RuntimeError in shutdown: late"),
        ({"start": {"exit": 3}}, RunStatus.CRASH, "exit code 3"),
        ({"start": {"signal": 9}}, RunStatus.CRASH, "killed by SIGKILL"),
        ({"generate": "garbage"}, RunStatus.CRASH, "HarnessError in generate: expected 2 answers"),
        ({"nonsense": 1}, RunStatus.UNSUPPORTED, "Unknown key 'nonsense'"),
    ],
)
def test_each_way_to_fail_has_its_status(make_launcher, cold, script, status, error):
    launcher = make_launcher(cold=cold)
    key = build_key(script)

    run = launcher.launch(key)

    assert (run.status, run.error[: len(error)]) == (status, error)
    assert read_run(launcher.runs_dir / key.key).status is status


def test_a_failed_run_keeps_what_it_had_and_shows_its_log(make_launcher):
    run = make_launcher().launch(build_key({"start": {"print": "hello"}, "probe": {"crash": "x"}}))

    assert len(run.outputs) == 2
    assert run.log_tail[0] == "hello"
    assert run.log_tail[-1] == "RuntimeError: x"


@BOTH_WAYS
def test_a_hang_is_ended_at_its_deadline_and_the_log_says_where(make_launcher, cold):
    launcher = make_launcher(cold=cold, deadline_s=3.0)
    key = build_key({"generate": "hang"})

    run = launcher.launch(key)

    assert run.status is RunStatus.HANG
    assert "deadline_s=3" in run.error
    assert "in _hang" in log_of(launcher, key)


def test_a_child_deaf_to_terminate_is_killed(make_launcher, monkeypatch):
    monkeypatch.setattr(launcher_module, "GRACE_S", 0.2)

    run = make_launcher(deadline_s=1.0).launch(build_key({"start": "hang_hard"}))

    assert run.status is RunStatus.HANG


@BOTH_WAYS
def test_interrupt_ends_what_runs_and_what_would_follow(make_launcher, cold):
    launcher = make_launcher(cold=cold)
    keys = [build_key({"start": "hang"}, runner=runner) for runner in ("v1", "v2")]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(launcher.launch, key) for key in keys]
        children = wait_until_active(launcher, 2)
        launcher.interrupt()
        runs = [future.result(60) for future in futures]

    assert [run.status for run in runs] == [RunStatus.INTERRUPTED] * 2
    assert all(is_gone(child.pid) for child in children)
    assert launcher.launch(build_key()).status is RunStatus.INTERRUPTED


@BOTH_WAYS
def test_a_process_left_behind_is_ended_with_its_run(make_launcher, cold):
    launcher = make_launcher(cold=cold)
    key = build_key({"generate": "orphan"})

    run = launcher.launch(key)

    (line,) = [x for x in log_of(launcher, key).splitlines() if x.startswith("orphan=")]
    assert run.status is RunStatus.OK
    assert is_gone(int(line.removeprefix("orphan=")))


def test_a_forked_child_has_nothing_of_the_warm_parents_environment_but_its_path(tmp_path):
    env = {**child_environment(Setting()), "PYTHONPATH": os.pathsep.join(sys.path)}
    key = build_key({"report_env": True})
    write_request(
        tmp_path,
        LaunchRequest(
            run_id=key.key,
            setting=key.setting,
            workload=key.workload,
            num_threads=1,
            launched_at=0.0,
            warm=True,
        ),
    )
    parent = WarmParent(sys.executable, "fake", {**env, "VLLM_STALE": "1"}, tmp_path / "warm.log")
    try:
        assert parent.fork(tmp_path, {**env, "PYTHONPATH": "/elsewhere"}).wait(60) == 0
    finally:
        parent.close()

    assert read_run(tmp_path).probe.env == env


WRAPPER = """\
#!/bin/sh
echo "loading what the engine needs"
PYTHONPATH="$PYTHONPATH:/added/by/wrapper" exec {python} "$@"
"""


def write_wrapper(folder):
    """An interpreter behind a script, as environment modules and containers have them."""
    path = folder / "python-wrapper"
    path.write_text(WRAPPER.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def test_a_child_keeps_what_its_interpreters_wrapper_adds(make_launcher, tmp_path):
    python = write_wrapper(tmp_path)

    run = make_launcher().launch(build_key({"report_env": True}, python=python))

    assert (run.status, run.warm) == (RunStatus.OK, True)
    assert run.probe.env["PYTHONPATH"].endswith(":/added/by/wrapper")


def test_a_forked_child_closes_what_its_parent_had_open_but_a_gpu_drivers_files(monkeypatch):
    opened = {3: "/tmp/log", 4: "/dev/nvidia0", 5: "/dev/nvidiactl", 6: "pipe:[1]", 7: None, 2: "x"}
    closed = []

    def read_link(path):
        name = opened[int(path.rsplit("/", 1)[1])]
        if name is None:
            raise FileNotFoundError(path)
        return name

    with monkeypatch.context() as patched:
        patched.setattr(warm.os, "listdir", lambda _: [str(fd) for fd in opened])
        patched.setattr(warm.os, "readlink", read_link)
        patched.setattr(warm.os, "close", closed.append)
        warm.close_files()

    assert [3, 6] == closed


def test_ctrl_c_in_the_launching_thread_leaves_no_child_behind(make_launcher, monkeypatch):
    started = []

    class Interrupted(ColdChild):
        def wait(self, timeout_s):
            started.append(self)
            if len(started) == 1:
                raise KeyboardInterrupt
            return super().wait(timeout_s)

    monkeypatch.setattr(launcher_module, "ColdChild", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_launcher(cold=True).launch(build_key({"start": "hang"}))

    assert is_gone(started[0].pid)


def test_leaving_the_launcher_ends_the_warm_parent(tmp_path):
    with Launcher(tmp_path, jobs=1) as launcher:
        launcher.launch(build_key())
        parent = only_parent(launcher)

    assert is_gone(parent.pid)


def test_one_warm_parent_serves_all_launches(make_launcher):
    launcher = make_launcher()
    runs = [launcher.launch(build_key(runner=r)) for r in ("v1", "v2")]

    assert [run.warm for run in runs] == [True, True]
    assert 1 == len(launcher._warm)
    assert len({run.probe.process_id for run in runs}) == 2


def test_without_its_warm_parent_launches_go_on_cold_and_say_so(make_launcher, caplog):
    launcher = make_launcher()
    launcher.launch(build_key(runner="v1"))
    os.kill(only_parent(launcher).pid, signal.SIGKILL)
    key = build_key(runner="v2")

    with caplog.at_level(logging.WARNING, "harness.launch"):
        run = launcher.launch(key)

    assert (run.status, run.warm) == (RunStatus.OK, False)
    assert "starting again, cold" in log_of(launcher, key)
    assert "launches start cold" in caplog.text
    assert launcher.launch(build_key()).status is RunStatus.OK


def test_a_child_whose_warm_parent_dies_is_ended_and_launched_again(make_launcher):
    launcher = make_launcher(deadline_s=2.0)
    key = build_key({"start": "hang"})
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(launcher.launch, key)
        (child,) = wait_until_active(launcher)
        os.kill(only_parent(launcher).pid, signal.SIGKILL)
        run = future.result(60)

    assert (run.status, run.warm) == (RunStatus.HANG, False)
    assert is_gone(child.pid)


def test_an_unsupported_step_is_refused(make_launcher):
    key = build_key()
    steps = (Step(), Step(kind="sleep"), Step())

    run = make_launcher().launch(replace(key, workload=replace(key.workload, steps=steps)))

    assert run.status is RunStatus.UNSUPPORTED
    assert "kind='sleep'" in run.error


def test_every_generate_step_is_answered(make_launcher):
    key = build_key()
    steps = (Step(), Step())

    run = make_launcher().launch(replace(key, workload=replace(key.workload, steps=steps)))

    assert [o.step_idx for o in run.outputs] == [0, 0, 1, 1]


def test_an_unknown_fault_is_named(make_launcher):
    run = make_launcher().launch(build_key(faults=("wrong-refil-target",)))

    assert run.status is RunStatus.CRASH
    assert "Did you mean 'wrong-refill-target'?" in run.error


def test_a_second_launch_starts_from_a_clean_folder(make_launcher):
    launcher = make_launcher()
    key = build_key({"start": {"exit": 1}})
    folder = launcher.runs_dir / key.key
    folder.mkdir()
    (folder / RUN_FILE).write_text("from before")
    (folder / LOG_FILE).write_text("from before")

    run = launcher.launch(key)

    assert run.error == "exit code 1"
    assert "from before" not in log_of(launcher, key)


def test_no_more_than_jobs_run_at_once(make_launcher):
    launcher = make_launcher(jobs=1)
    keys = [build_key({"start": "hang"}, runner=runner) for runner in ("v1", "v2")]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(launcher.launch, key) for key in keys]
        wait_until_active(launcher)
        waiting = launcher._slots.acquire(blocking=False)
        launcher.interrupt()
        statuses = {future.result(60).status for future in futures}

    assert not waiting
    assert statuses == {RunStatus.INTERRUPTED}


@BOTH_WAYS
def test_another_interpreter_sees_harness_and_nothing_else_of_ours(make_launcher, tmp_path, cold):
    venv.create(tmp_path / "other", with_pip=False)
    python = str(tmp_path / "other" / "bin" / "python")
    launcher = make_launcher(cold=cold)

    run = launcher.launch(build_key({"report_env": True}, python=python))

    assert (run.status, run.warm) == (RunStatus.OK, not cold)
    (root,) = run.probe.env["PYTHONPATH"].split(os.pathsep)
    assert {"harness", "offload_harness_inside-0.dist-info"} == set(os.listdir(root))


def test_interpreters_and_early_variables_have_warm_parents_of_their_own(make_launcher, tmp_path):
    venv.create(tmp_path / "other", with_pip=False)
    other = str(tmp_path / "other" / "bin" / "python")
    settings = [{}, {"python": other}, {"env": {"OPENBLAS_CORETYPE": "Haswell"}}]
    launcher = make_launcher()

    runs = [
        launcher.launch(build_key({"report_env": True}, runner=runner, **fields))
        for fields in settings
        for runner in ("v1", "v2")
    ]

    assert [(RunStatus.OK, True)] * 6 == [(run.status, run.warm) for run in runs]
    assert ["fake"] * 3 == [key.engine for key in launcher._warm]
    assert 3 == len({parent.pid for parent in launcher._warm.values()})
    assert ["Haswell"] * 2 == [run.probe.env["OPENBLAS_CORETYPE"] for run in runs[4:]]


def test_one_warm_parent_that_dies_leaves_the_others_be(make_launcher):
    launcher = make_launcher()
    other = {"env": {"OPENBLAS_CORETYPE": "Haswell"}}
    launcher.launch(build_key(runner="v1"))
    launcher.launch(build_key(runner="v1", **other))
    os.kill(next(iter(launcher._warm.values())).pid, signal.SIGKILL)

    assert not launcher.launch(build_key(runner="v2")).warm
    assert launcher.launch(build_key(runner="v2", **other)).warm


def test_a_missing_interpreter_is_a_run_that_says_so_in_one_line(make_launcher):
    run = make_launcher().launch(build_key(python="/no/such/python", release="0.28"))

    assert RunStatus.ABSENT is run.status
    assert "engine 'fake' of release '0.28': python='/no/such/python' cannot be" in run.error
    assert (run.error.count("\n"), run.log_tail[-1]) == (0, f"harness: {run.error}")


def test_jobs_below_one_are_refused(tmp_path):
    with pytest.raises(LaunchError, match="jobs=0"):
        Launcher(tmp_path, jobs=0)


def test_launching_needs_no_torch_in_this_process():
    code = "import sys, harness.launch; print([m for m in sys.modules if m == 'torch'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={}
    )

    assert json.loads(done.stdout) == []


def test_many_threads_may_launch_at_once(make_launcher):
    launcher = make_launcher(jobs=4)
    keys = [build_key({"token_ids": [[i], [i]]}) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(launcher.launch, keys))

    assert [run.outputs[0].token_ids for run in runs] == [(i,) for i in range(8)]


def test_an_interpreter_that_is_not_there_is_tried_once(make_launcher, monkeypatch):
    tried = []
    plain = launcher_module.ColdChild

    def note(argv, *rest):
        tried.append(argv[0])
        return plain(argv, *rest)

    monkeypatch.setattr(launcher_module, "ColdChild", note)
    launcher = make_launcher(cold=True)

    runs = [
        launcher.launch(build_key(python=python, release=release, runner=runner))
        for release, python in (("a", "/no/such"), ("b", "/nor/this"))
        for runner in ("v1", "v2")
    ]

    assert ["/no/such", "/nor/this"] == tried
    assert {RunStatus.ABSENT} == {run.status for run in runs}
    assert 2 == len({run.error for run in runs})
    assert all(read_run(launcher.runs_dir / run.run_id) == run for run in runs)


def test_a_package_of_the_engine_that_only_a_launch_misses_is_found_out_once(
    make_launcher, monkeypatch
):
    started = []
    plain = Launcher._run_child

    def note(self, folder, request, started_at):
        started.append(request.run_id)
        return plain(self, folder, request, started_at)

    monkeypatch.setattr(Launcher, "_run_child", note)
    launcher = make_launcher(cold=True)
    say = {"start": {"lacks": "No module named 'torch'"}}

    runs = [launcher.launch(build_key(say, runner=runner)) for runner in ("v1", "v2")]

    assert [runs[0].run_id] == started
    assert "No module named 'torch'" in runs[0].error
    assert runs[1].error == runs[0].error


@pytest.mark.parametrize("answer", ["", "exit 3", "echo hello", "echo vllm.x"])
def test_an_interpreter_that_answers_anything_else_is_launched(tmp_path, answer):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)

    assert Absences().find(Setting(engine="vllm", python=str(program)), {}) is None
