"""`harness doctor`: what each interpreter can test, and why not the rest."""

import sys
import venv
from pathlib import Path

from .commandline import run_harness


def test_this_interpreter_is_usable(tmp_path):
    answer = run_harness("doctor", "--json", cwd=tmp_path)

    assert (0, "") == (answer.code, answer.err)
    (found,) = answer.json
    assert (sys.executable, True) == (found["python"], found["usable"])
    checks = {c["name"]: c for c in found["checks"]}
    assert checks["reference engine, simulated device"]["ok"]
    assert all(c["found"] for c in checks.values())


def test_an_interpreter_that_is_none_is_named(cli, tmp_path):
    answer = cli("doctor", "--python", f"x={tmp_path / 'python'}")

    assert 3 == answer.code
    title, problem = answer.out.splitlines()
    assert f"x ({tmp_path / 'python'})" == title
    assert "  cannot be used: it cannot be started: no such file or directory" == problem


def test_an_interpreter_that_fails_says_why(cli, tmp_path):
    broken = Path(tmp_path / "python")
    broken.write_text("#!/bin/sh\necho no such thing here >&2\nexit 9\n")
    broken.chmod(0o755)

    answer = cli("doctor", "--python", broken, "--json")

    assert 3 == answer.code
    (found,) = answer.json
    assert not found["usable"]
    assert "it failed with exit code 9: no such thing here" == found["problem"]


def test_one_without_torch_does_not_hide_the_others(cli, tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)

    answer = cli("doctor", "--python", f"bare={tmp_path / 'bare'}", "--python", sys.executable)

    assert 3 == answer.code
    lines = answer.out.splitlines()
    assert lines[0].startswith("bare Python 3.")
    assert "  cannot be used: torch is not installed there" in lines[1]
    marks = [line for line in lines if line.startswith("  ✓ reference engine, simulated")]
    assert 1 == len(marks)


def test_an_empty_label_is_a_usage_error(cli):
    answer = cli("doctor", "--python", "=/usr/bin/python3")

    assert (2, 1) == (answer.code, len(answer.err.splitlines()))
