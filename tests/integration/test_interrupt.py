"""Ctrl-C ends every child and keeps what was recorded."""

import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

import harness

from .commandline import DEADLINE_S, ROOT, command, environment, run_harness

MANY = """\
models: [tiny-llama]
workload: default
axes:
  offload: [{cpu_offload_gb: 1}, {cpu_offload_gb: 0.001}, {cpu_offload_gb: 0.003},
            {offload_group_size: 1}, {offload_group_size: 2}, {offload_group_size: 4}]
  pin_memory: [true, false]
  uva: [true, false]
  runner: [v1, v2]
"""


MARKS = ("✓", "✕", "!")


def descendants(pid):
    """Every process below `pid`, as pidfds: a number that is taken again cannot mislead."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            try:
                fd = os.pidfd_open(child)
            except ProcessLookupError:
                continue
            found += [fd, *descendants(child)]
    return found


def has_ended(pidfd):
    return bool(select.select([pidfd], [], [], 5)[0])


@pytest.fixture
def interrupted(tmp_path):
    """A run of many cells, sent a signal once three cases have had their line."""

    def start(signum, *args):
        (tmp_path / "many.yaml").write_text(MANY)
        child = subprocess.Popen(
            command("run", "--matrix", tmp_path / "many.yaml", "-o", tmp_path / "out", *args),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
            # A shell that starts the tests in the background makes them ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        lines = []
        while sum(line.startswith(MARKS) for line in lines) < 3:
            lines.append(child.stdout.readline())
            assert lines[-1], "".join(lines) + child.stderr.read()
        below = descendants(child.pid)
        assert below
        os.killpg(child.pid, signum)
        out, err = child.communicate(timeout=DEADLINE_S)
        ended = [has_ended(fd) for fd in below]
        for fd in below:
            os.close(fd)
        return child.returncode, "".join(lines) + out, err, ended

    return start


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_record_keeps_what_was_judged(interrupted, tmp_path, signum):
    code, out, err, ended = interrupted(signum, "-j", 1)

    assert 130 == code, out + err
    assert "harness: interrupted\n" == err
    assert all(ended)
    session = harness.load_run(tmp_path / "out")
    shown = sum(line.startswith(MARKS) for line in out.split("\n\n")[0].splitlines())
    assert 3 <= len(session.results) == shown < 45, out
    assert {"PASS", "FAIL"} >= {r.verdict.value for r in session.results}
    assert f"Interrupted: {shown} of " in out
    assert session.outcome.exit_code != 0
    assert "Interrupted: " in (session.folder / "report.html").read_text()
    again = run_harness("report", session.folder, "--json")
    assert again.json["outcome"]["sentence"].startswith("Interrupted: ")


def test_no_run_is_taken_for_a_failure(interrupted, tmp_path):
    interrupted(signal.SIGINT, "-j", 2)

    (folder,) = (tmp_path / "out").iterdir()
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    assert [] == [c["verdict"] for c in cases if c["verdict"] not in ("PASS", "FAIL")]
    assert [c["case"]["role"] for c in cases if c["verdict"] == "FAIL"] in ([], ["control"])
