import sys
from dataclasses import replace

import pytest

from harness.core import Run, RunStatus, Setting
from harness.core.runfiles import RUN_FILE, write_run
from harness.launch.classify import Ending, conclude_run, describe_exit, log_tail
from harness.launch.request import LOG_FILE

from .test_request import build_request


def conclude(folder, *, returncode=0, ending=Ending.BY_ITSELF):
    return conclude_run(
        folder, build_request(), ending=ending, returncode=returncode, elapsed_s=2.0, deadline_s=9.0
    )


def ok_run(**changes):
    run = Run(run_id="r", setting=build_request().setting, status=RunStatus.OK)
    return replace(run, **changes)


def test_a_written_run_is_taken_as_it_is(tmp_path):
    write_run(tmp_path, ok_run())

    assert conclude(tmp_path) == ok_run()


def test_a_crash_after_the_run_was_written_is_a_crash(tmp_path):
    write_run(tmp_path, ok_run())

    run = conclude(tmp_path, returncode=-11)

    assert run.status is RunStatus.CRASH
    assert run.error == "killed by SIGSEGV after it had written its run"


def test_a_signal_is_named(tmp_path):
    (tmp_path / LOG_FILE).write_text("loading\nhalf way\n")

    run = conclude(tmp_path, returncode=-9)

    assert (run.status, run.error) == (RunStatus.CRASH, "killed by SIGKILL: half way")
    assert run.log_tail == ("loading", "half way")
    assert run.timings == {"total": 2.0}


def test_the_log_line_that_names_an_exception_is_quoted(tmp_path):
    (tmp_path / LOG_FILE).write_text("Traceback\nMemoryError\nafterwards\n")

    assert conclude(tmp_path, returncode=1).error == "exit code 1: MemoryError"


def test_a_child_that_writes_nothing_is_a_crash_even_with_exit_code_0(tmp_path):
    run = conclude(tmp_path)

    assert (run.status, run.error) == (RunStatus.CRASH, "exit code 0, but it wrote no run")


def test_an_unreadable_run_is_a_crash(tmp_path):
    write_run(tmp_path, ok_run())
    (tmp_path / RUN_FILE).write_text("{")

    run = conclude(tmp_path)

    assert run.status is RunStatus.CRASH
    assert "its run cannot be read" in run.error


@pytest.mark.parametrize("change", [{"run_id": "other"}, {"setting": Setting(runner="v1")}])
def test_a_run_of_another_setting_is_a_crash(tmp_path, change):
    write_run(tmp_path, ok_run(**change))

    assert "its run is of another setting" in conclude(tmp_path).error


def test_deadline_and_interrupt_are_not_crashes(tmp_path):
    hang = conclude(tmp_path, returncode=-15, ending=Ending.DEADLINE)
    stopped = conclude(tmp_path, returncode=-15, ending=Ending.INTERRUPT)

    assert (hang.status, stopped.status) == (RunStatus.HANG, RunStatus.INTERRUPTED)
    assert "deadline_s=9" in hang.error


def test_a_log_tail_is_short_and_holds_no_secret(tmp_path):
    lines = [f"line {i}" for i in range(50)]
    (tmp_path / LOG_FILE).write_text("\n".join([*lines, "HF_TOKEN=hf_abc"]) + "\n")

    tail = log_tail(tmp_path / LOG_FILE)

    assert len(tail) == 20
    assert "hf_abc" not in "".join(tail)
    assert log_tail(tmp_path / "absent") == ()


def test_unknown_signals_and_plain_codes_are_described():
    assert describe_exit(-63) == "killed by signal 63"
    assert describe_exit(3) == "exit code 3"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ModuleNotFoundError in import: No module named 'reference'", "is not installed in "),
        ("ModuleNotFoundError in load: No module named 'torch._C'", "is not installed in "),
        ("ModuleNotFoundError in import: No module named 'zmq.sub'", "lacks a package in "),
        ("ImportError in import: libcudart.so: no such file", "cannot be imported in "),
    ],
)
def test_an_engine_that_cannot_be_imported_is_named_with_its_interpreter(tmp_path, error, expected):
    write_run(tmp_path, ok_run(status=RunStatus.CRASH, error=error))

    text = conclude(tmp_path).error

    assert text.startswith(
        f"engine 'reference' {expected}{sys.executable}: {error.split(': ', 1)[1]}; "
    )
    assert text.endswith("or name another interpreter with --python")


@pytest.mark.parametrize(
    "error",
    ["RuntimeError in load: no", "ModuleNotFoundError in import: No module named 'harness.x'"],
)
def test_every_other_error_is_left_as_the_child_wrote_it(tmp_path, error):
    write_run(tmp_path, ok_run(status=RunStatus.CRASH, error=error))

    assert error == conclude(tmp_path).error


def test_a_child_that_could_not_even_import_is_told_from_its_log(tmp_path):
    (tmp_path / LOG_FILE).write_text("Traceback\nModuleNotFoundError: No module named 'numpy'\n")

    text = conclude(tmp_path, returncode=1).error

    assert "engine 'reference' lacks a package in" in text
    assert "install numpy there" in text
