"""Several interpreters in one run: each way to fail is classified, and the others go on."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.api import compare_two_settings
from harness.core import RunKey, RunStatus, Setting, UsageError
from harness.core.runfiles import read_run
from harness.launch import Launcher
from tests.builders import build_workload

from .commandline import DEADLINE_S, ROOT, environment, run_harness

CELLS = """\
models: [tiny-llama]
workload: short
axes:
  offload: [{cpu_offload_gb: 1}]
  runner: [v2]
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An interpreter with a torch that does nothing, and no engine."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch.py").write_text("__version__ = '0'\n")
    return str(folder / "bin" / "python")


@pytest.fixture
def run_matrix(tmp_path):
    """`run_matrix(engines, *args)` -> the answer, and its runs by (release, is a target)."""

    def run(engines, *args):
        path = tmp_path / "some.yaml"
        path.write_text(engines + CELLS)
        answer = run_harness("run", "--matrix", path, "-o", tmp_path / "out", "--json", *args)
        runs = [read_run(folder) for folder in (answer.session / "runs").iterdir()]
        return answer, {(r.setting.release, not r.setting.is_baseline): r for r in runs}

    return run


@pytest.fixture
def launcher(tmp_path):
    with Launcher(tmp_path / "runs", jobs=1, deadline_s=60, cold=True) as opened:
        yield opened


def key(python, engine="fake", **fields):
    setting = Setting(engine=engine, python=python, release="x", **fields)
    return RunKey(setting=setting, workload=build_workload())


def verdicts(answer):
    return {c["cell"]: c["verdict"] for c in answer.json["cases"] if c["role"] == "case"}


def test_a_missing_interpreter_is_an_error_and_the_other_release_passes(run_matrix, tmp_path):
    engines = (
        f"engines:\n  - {{name: reference, release: here, python: {sys.executable}}}\n"
        "  - {name: reference, release: gone, python: nowhere/bin/python}\n"
    )

    answer, runs = run_matrix(engines)

    assert 3 == answer.code
    cell = "tiny-llama/v2-uva-gb1-pin1-eager"
    assert {f"{cell}-here": "PASS", f"{cell}-gone": "ERROR"} == verdicts(answer)
    gone = runs["gone", True]
    path = tmp_path / "nowhere"
    assert f"python='{path}/bin/python' cannot be started" in gone.error
    assert f"no such file, nor a folder {path}; name an interpreter" in gone.error
    assert (f"harness: {gone.error}", RunStatus.ABSENT) == (gone.log_tail[-1], gone.status)


def test_a_slip_in_the_only_interpreter_ends_the_invocation_in_one_line(tmp_path):
    answer = run_harness("run", "--engine", "reference", "--python", f"x={tmp_path / 'no'}")

    assert (2, 1) == (answer.code, len(answer.err.splitlines()))
    assert f"there is no interpreter at '{tmp_path / 'no'}'" in answer.err


def test_hang_refusal_and_crash_in_start_up_are_told_apart_in_one_run(run_matrix):
    entry = "  - {{name: fake, release: {}, python: {}, engine_args: {{script: {{start: {}}}}}}}\n"
    ways = {"hang": "hang", "refuse": "{refuse: no offload here}", "die": "{exit: 7}"}
    engines = "".join(entry.format(name, sys.executable, act) for name, act in ways.items())
    started_at = time.monotonic()

    answer, runs = run_matrix("engines:\n" + engines, "--deadline", 3)

    assert time.monotonic() - started_at < 60
    assert 3 == answer.code
    assert ["ERROR", "UNSUPPORTED", "ERROR"] == list(verdicts(answer).values())
    hang, refused, dead = (runs[name, True] for name in ways)
    assert (RunStatus.HANG, True) == (hang.status, "hanging" in hang.log_tail)
    assert "no answer within deadline_s=3" in hang.error
    assert (RunStatus.UNSUPPORTED, "no offload here") == (refused.status, refused.error)
    assert RunStatus.CRASH is dead.status
    assert dead.error.startswith("exit code 7")


@pytest.mark.parametrize("engine", ["vllm", "vllm-cpu-emulation", "accelerate"])
def test_an_interpreter_without_the_engine_is_named_with_what_to_do(launcher, bare, engine):
    run = launcher.launch(key(bare, engine))

    assert RunStatus.ABSENT is run.status
    assert f"engine '{engine}'" in run.error
    assert bare in run.error
    module = {"accelerate": "transformers"}.get(engine, "vllm")
    assert f"No module named '{module}'" in run.error
    assert re.search(r"install (it|them) there", run.error)
    assert [line for line in run.log_tail if f"No module named '{module}'" in line]
    if module == "vllm":
        assert run.error.startswith(f"engine '{engine}' is not installed in {bare}: No module")
        assert run.error.endswith(", or name another interpreter with --python")


def test_a_missing_engine_is_found_out_once_and_counted_in_the_sentence(run_matrix, tmp_path, bare):
    started = tmp_path / "started"
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\necho started >> "{started}"\nexec "{bare}" "$@"\n')
    wrapper.chmod(0o755)
    engines = (
        f"engines:\n  - {{name: reference, release: here, python: {sys.executable}}}\n"
        f"  - {{name: vllm, release: gone, python: {wrapper}}}\n"
    )

    answer, runs = run_matrix(engines)

    assert 3 == answer.code
    assert ["started"] == started.read_text().split()
    reason = f"engine 'vllm' is not installed in {wrapper}: No module named 'vllm'; install it"
    gone = [run for (release, _), run in runs.items() if release == "gone"]
    assert 2 == len(gone)
    assert all(run.error.startswith(reason) for run in gone)
    assert answer.json["outcome"]["sentence"].startswith(
        f"1 of 2 cells ended in ERROR: {reason} there"
    )


def test_an_engine_without_a_package_that_it_needs_names_the_package(launcher, tmp_path, bare):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "vllm.py").write_text("import torch, zmq_of_old\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{bare}" "$@"\n')
    wrapper.chmod(0o755)

    run = launcher.launch(key(str(wrapper), "vllm"))

    lacks = "lacks a package in {}: No module named 'zmq_of_old'; install zmq_of_old there"
    assert f"engine 'vllm' {lacks.format(wrapper)}" in run.error


def test_a_program_that_is_no_interpreter_is_one_line(launcher, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho this is no python >&2\nexit 4\n")
    program.chmod(0o755)

    run = launcher.launch(key(str(program)))

    assert (RunStatus.CRASH, "exit code 4: this is no python") == (run.status, run.error)
    program.write_text("no program at all")
    assert "cannot be started: exec format error" in launcher.launch(key(str(program))).error


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
def test_an_interpreter_that_hangs_as_it_starts_is_a_hang_within_seconds(tmp_path, cold):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho half way\nexec sleep 600\n")
    program.chmod(0o755)
    started_at = time.monotonic()

    with Launcher(tmp_path / "runs", jobs=1, deadline_s=1, cold=cold) as opened:
        run = opened.launch(key(str(program)))

    assert (RunStatus.HANG, "half way") == (run.status, run.log_tail[-1])
    assert time.monotonic() - started_at < 30


def test_an_engine_killed_from_outside_is_a_crash_that_names_the_signal(launcher):
    hanging = key(sys.executable, engine_args={"script": {"generate": "hang"}})
    log = launcher.runs_dir / hanging.key / "log.txt"
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(launcher.launch, hanging)
        with launcher._changed:
            assert launcher._changed.wait_for(lambda: launcher._active, 60)
            (child,) = launcher._active.values()
        assert wait_for_text(log, "hanging")
        os.kill(child.pid, signal.SIGKILL)
        run = future.result(60)

    assert RunStatus.CRASH is run.status
    assert run.error == "killed by SIGKILL: hanging"
    assert ("hanging",) == run.log_tail


def wait_for_text(path, text, timeout_s=60):
    """Whether `text` came into a file that another process writes; there is nothing to wait on."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while time.monotonic() < deadline:
        if text in path.read_text():
            return True
        pause.wait(0.02)
    return False


def test_the_printed_command_runs_its_cell_again_under_its_interpreter(tmp_path, small_matrix):
    first, second = f"a={sys.executable}", f"b={sys.executable}"
    args = ("--matrix", small_matrix, "--engine", "reference", "-o", tmp_path / "out", "--json")
    answer = run_harness(
        "run", *args, "--python", first, "--python", second, "-k", "eager-b and v2-uva"
    )

    assert 0 == answer.code
    (case,) = [c for c in answer.json["cases"] if c["role"] == "case"]
    words = case["command"].split()
    assert ["--engine", "reference", "--python", second] == words[4:8]
    again = run_harness("list", *words[2:], "--json")
    assert [case["cell"]] == [c["cell"] for c in again.json]
    assert {"reference a": sys.executable, "reference b": sys.executable}.items() >= json.loads(
        (answer.session / "manifest.json").read_text()
    )["releases"].items()


def test_two_settings_are_compared_under_a_given_interpreter(tmp_path):
    result = compare_two_settings(
        "tiny-llama",
        [],
        ["--cpu-offload-gb", "1"],
        python=f"mine={sys.executable}",
        workload="short",
        controls=False,
        reports_dir=tmp_path,
    )

    place = ("mine", sys.executable)
    sides = (result.case.baseline, result.case.target)
    assert [place, place] == [(side.release, side.python) for side in sides]
    assert f"--python mine={sys.executable}" in result.command
    with pytest.raises(UsageError, match="python '/nope'"):
        compare_two_settings("tiny-llama", [], ["--cpu-offload-gb", "1"], python="/nope")


def test_the_suites_run_once_for_each_release(tmp_path):
    pythons = [f"--harness-python={label}={sys.executable}" for label in "ab"]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/offload", "-v", "-p", "no:cacheprovider",
         "--harness-engine=reference", *pythons, f"--harness-store={tmp_path}",
         "-k", "partial_budget and 0.002 and v1"],
        capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip

    assert 0 == child.returncode, child.stdout
    assert "2 passed" in child.stdout
    passed = [line for line in child.stdout.splitlines() if "PASSED" in line]
    assert [True, True] == [f"reference-{x}" in line for x, line in zip("ab", passed, strict=True)]
