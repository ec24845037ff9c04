"""`harness doctor`: what this machine can run, and why not the rest."""

import sys
from pathlib import Path

from .commandline import run_harness


def test_this_interpreter_is_usable(tmp_path):
    answer = run_harness("doctor", "--json", cwd=tmp_path)

    assert (0, "") == (answer.code, answer.err)
    (found,) = answer.json
    assert sys.executable in found["python"]
    checks = {c["name"]: c for c in found["checks"]}
    assert checks["reference engine, simulated device"]["ok"]
    assert all(c["found"] for c in checks.values())


def test_an_interpreter_that_is_none_is_named(cli, tmp_path):
    answer = cli("doctor", "--python", tmp_path / "python")

    assert 3 == answer.code
    assert str(tmp_path / "python") in answer.out
    assert "cannot be used" in answer.out
    assert "Traceback" not in answer.out + answer.err


def test_an_interpreter_that_fails_says_why(cli, tmp_path):
    broken = Path(tmp_path / "python")
    broken.write_text("#!/bin/sh\necho no such thing here >&2\nexit 9\n")
    broken.chmod(0o755)

    answer = cli("doctor", "--python", broken, "--json")

    assert 3 == answer.code
    assert [("no such thing here", False)] == [(f["problem"], f["usable"]) for f in answer.json]
