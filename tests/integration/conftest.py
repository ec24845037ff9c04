"""A small matrix, one recorded session of it for all who only read it, and quick verbs."""

import fcntl
import json
import os
import signal

import pytest

from harness.cli.main import main

from .commandline import Answer, run_harness

SMALL = """\
name: small
models: [tiny-llama]
workload: short
axes:
  offload:
    - {cpu_offload_gb: 1}
    - {offload_group_size: 2, offload_prefetch_step: 3}
  runner: [v1, v2]
"""
CELLS = [
    "tiny-llama/v1-uva-gb1-pin1-eager",
    "tiny-llama/v2-uva-gb1-pin1-eager",
    "tiny-llama/v1-prefetch-g2n1s3-pin1-eager",
    "tiny-llama/v2-prefetch-g2n1s3-pin1-eager",
]


@pytest.fixture
def small_matrix(tmp_path):
    """Path of a matrix of four cells (two runners, two backends), two prompts of eight tokens."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def cells():
    """Ids of the small matrix's cells."""
    return CELLS


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """`harness run` of the small matrix, made once, shared by all pytest workers; read only."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    done = base / "recorded.json"
    with (base / "recorded.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            matrix = base / "recorded.yaml"
            matrix.write_text(SMALL)
            answer = run_harness("run", "--matrix", matrix, "-o", base / "recorded")
            done.write_text(json.dumps([answer.code, answer.out, answer.err]))
    return Answer(*json.loads(done.read_text()))


@pytest.fixture
def cli(capsys, monkeypatch):
    """`cli(*args)` -> Answer: a verb that launches nothing, run in this process."""
    monkeypatch.setattr(signal, "signal", lambda *_args: None)

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        said = capsys.readouterr()
        return Answer(stop.value.code, said.out, said.err)

    return run
