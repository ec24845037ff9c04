import contextlib
import os
import signal
import sys

import pytest

from harness.launch.process import ColdChild, end_child, kill_group, wait_for_exit


@pytest.fixture
def start(tmp_path):
    children = []

    def run(code):
        child = ColdChild([sys.executable, "-c", code], {"PATH": "/bin"}, tmp_path / "log.txt")
        children.append(child)
        return child

    yield run
    for child in children:
        child.send(signal.SIGKILL)
        child.wait(None)


def test_a_child_reports_its_exit_code_and_signal(start):
    assert start("raise SystemExit(7)").wait(30) == 7
    assert start("import os; os.kill(os.getpid(), 9)").wait(30) == -9


def test_waiting_gives_up_at_its_time_out(start):
    assert start("import signal; signal.pause()").wait(0.01) is None


def test_ending_is_terminate_first(start):
    assert end_child(start("import signal; signal.pause()"), grace_s=30) == -signal.SIGTERM


def test_a_grandchild_does_not_outlive_its_group(start, tmp_path):
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(p.pid, flush=True)\n"
    )
    assert start(code).wait(30) == 0

    grandchild = int((tmp_path / "log.txt").read_text())
    with contextlib.suppress(ProcessLookupError):
        assert wait_for_exit(grandchild, 30)


def test_a_group_that_is_gone_is_no_error(start):
    child = start("pass")
    child.wait(30)

    child.send(signal.SIGTERM)
    kill_group(child.pid, 0)
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, 0)
