"""Real engines: `make test-engines` builds their interpreters, names them and runs these tests.

Without the variables that name them, every test here skips and says so.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from harness.cells import plan_matrix
from harness.core import Plan
from harness.interpreters import open_matrix
from harness.pipeline import Options, Session
from harness.record import load_session

MATRICES = Path(__file__).with_name("matrices")
ROOT = Path(__file__).parents[2]
INTERPRETERS = {"vllm": "HARNESS_VLLM_PYTHON", "accelerate": "HARNESS_ACCELERATE_PYTHON"}
DEADLINE_S = 540


@dataclass(kw_only=True)
class Finished:
    """What `harness run` left behind."""

    code: int
    answer: dict
    folder: Path

    @cached_property
    def record(self):
        return load_session(self.folder)

    def results(self, *roles):
        """Results of these roles."""
        return [r for r in self.record.results if r.case.role in roles]


def name_cell(case):
    """`v1-prefetch-g1n1s3-pin0`: the target's runner and offload alone."""
    return f"{case.target.runner or 'vX'}-{case.target.offload.offload_id}"


@pytest.fixture(scope="session")
def interpreter():
    """`interpreter(engine)` -> its path; skips where the environment names none."""

    def find(engine):
        name = INTERPRETERS[engine]
        if not os.environ.get(name):
            pytest.skip(f"{name} names no interpreter with {engine}; `make test-engines` builds it")
        return os.environ[name]

    return find


@pytest.fixture(scope="session")
def store(request, tmp_path_factory):
    """Folder of the records: --harness-store, else a temporary one."""
    given = request.config.getoption("--harness-store")
    return Path(given).absolute() if given else tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def run_matrix(store):
    """`run_matrix(file, *options)` -> what `harness run` made of it, in a process of its own."""

    def run(file, *options):
        args = ["run", "--matrix", file, "-o", store, "--json", *options]
        child = subprocess.run(
            [sys.executable, "-m", "harness", *map(str, args)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=ROOT,
        )
        assert child.stdout.startswith("{"), f"exit code {child.returncode}: {child.stderr}"
        answer = json.loads(child.stdout)
        return Finished(code=child.returncode, answer=answer, folder=Path(answer["session"]))

    return run


@pytest.fixture(scope="session")
def run_cases(store):
    """`run_cases(planned)` -> the finished session that ran these cases, and no control."""

    def run(planned):
        with Session(store, manifest={"door": "pytest"}, options=Options()) as session:
            session.run_plan(Plan(cases=tuple(planned)), controls=False)
        return session

    return run


def plant_faults(file, faults, pythons=()):
    """The cells of a matrix that each of these faults changes anything in."""
    matrix = open_matrix(file, pythons=pythons)
    planned = [p for name in faults for p in plan_matrix(matrix, faults=[name]).cases]
    return [p for p in planned if p.case.role == "case" and p.case.target.faults]


@pytest.fixture(scope="session")
def plan_faults():
    """`plan_faults(file, faults, pythons)` -> the cells with each of the faults in them."""
    return plant_faults


@pytest.fixture(scope="session")
def named():
    """`named(results, fault)` -> {cell: result}, of those with that fault alone."""

    def find(results, *faults):
        return {name_cell(r.case): r for r in results if r.case.target.faults == faults}

    return find
