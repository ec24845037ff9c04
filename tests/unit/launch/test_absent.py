import errno
import os
import subprocess

import pytest

from harness.core import RunStatus, Setting
from harness.launch import absent
from harness.launch import launcher as launcher_module
from harness.launch.absent import Absences, is_absent

from .conftest import build_key

PASSING = [errno.EAGAIN, errno.ENOMEM, errno.EMFILE]


def error_of(number, filename=None):
    return OSError(number, os.strerror(number), filename)


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("name", [None, "/some/python"])
def test_what_a_machine_is_short_of_says_nothing_of_the_interpreter(number, name):
    assert not is_absent(error_of(number, name), "/some/python")


def test_only_what_is_wrong_with_the_interpreter_itself_says_it_is_absent():
    def said(number, name):
        return is_absent(error_of(number, name), "/some/python")

    wrong = ("ENOENT", "ENOTDIR", "EACCES", "ENOEXEC", "EISDIR", "ELOOP", "ENAMETOOLONG")
    assert all(said(getattr(errno, name), "/some/python") for name in wrong)
    assert not any(said(getattr(errno, name), "/runs/a/log.txt") for name in wrong)


def make_folder(path):
    path.mkdir()


def make_loop(path):
    path.symlink_to(path)


def make_text(path):
    path.write_text("no program")
    path.chmod(0o755)


def make_unexecutable(path):
    path.write_text("#!/bin/sh\n")


def make_nothing(path):
    """There is none."""


@pytest.mark.parametrize(
    "make", [make_folder, make_loop, make_text, make_unexecutable, make_nothing]
)
def test_an_interpreter_that_can_never_be_started_is_absent_to_a_launch_and_to_a_look(
    make, make_launcher, tmp_path
):
    python = tmp_path / "python"
    make(python)

    run = make_launcher(cold=True).launch(build_key(python=str(python)))
    seen = Absences().find(Setting(engine="vllm", python=str(python)), {})

    assert RunStatus.ABSENT is run.status
    assert f"python='{python}' cannot be started" in run.error
    assert seen == run.error.replace("'fake'", "'vllm'")


@pytest.mark.parametrize("number", PASSING)
def test_a_launch_that_the_machine_had_no_room_for_is_a_crash_of_its_own(
    make_launcher, monkeypatch, number
):
    plain, asked = launcher_module.ColdChild, []

    def start(argv, *rest):
        asked.append(argv)
        if len(asked) == 1:
            raise error_of(number)
        return plain(argv, *rest)

    monkeypatch.setattr(launcher_module, "ColdChild", start)
    launcher = make_launcher(cold=True)

    first, second = (launcher.launch(build_key(runner=runner)) for runner in ("v1", "v2"))

    assert RunStatus.CRASH is first.status
    assert os.strerror(number).lower() in first.error
    assert "\n" not in first.error
    assert RunStatus.OK is second.status, second.error


def test_a_log_that_cannot_be_opened_is_no_word_on_the_interpreter(make_launcher, monkeypatch):
    def start(argv, env, log):
        raise error_of(errno.ENOENT, str(log))

    with monkeypatch.context() as patch:
        patch.setattr(launcher_module, "ColdChild", start)
        launcher = make_launcher(cold=True)
        run = launcher.launch(build_key())

    assert RunStatus.CRASH is run.status
    assert "log.txt" in run.error
    assert RunStatus.OK is launcher.launch(build_key()).status


@pytest.mark.parametrize("number", PASSING)
def test_a_look_that_the_machine_had_no_room_for_is_no_evidence(monkeypatch, number):
    def run(*_args, **_options):
        raise error_of(number)

    monkeypatch.setattr(absent.subprocess, "run", run)
    assert subprocess.run is run

    assert Absences().find(Setting(engine="vllm", python="/some/python"), {}) is None


def test_without_room_for_a_warm_parent_launches_go_cold_and_say_so(
    make_launcher, monkeypatch, caplog
):
    def start(*_args, **_options):
        raise error_of(errno.EAGAIN)

    monkeypatch.setattr(launcher_module, "WarmParent", start)

    run = make_launcher().launch(build_key())

    assert (RunStatus.OK, False) == (run.status, run.warm)
    assert os.strerror(errno.EAGAIN) in caplog.text
