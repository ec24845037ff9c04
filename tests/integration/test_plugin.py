"""The pytest plugin: options, markers, ids, verdicts in pytest's terms, on one core and on two."""

import json
import sys

import pytest

import harness

from .commandline import ROOT, environment
from .conftest import SMALL

CONFTEST = (ROOT / "conftest.py").read_text()
MATRIX_TEST = "def test_cell(planned_case, check_case):\n    check_case(planned_case)\n"

SCRIPTED = """
import pytest

from harness.core import Finding, Verdict
from harness.settings import load_model, load_workload
from tests.builders import build_case, build_result


@pytest.fixture(scope="session")
def harness_session():
    class Scripted:
        results = []

        def compare_once(self, planned):
            verdict = {"null": Verdict.PASS, "control": Verdict.FAIL}[planned.case.role]
            word = Finding(judge="tokens", verdict=verdict, summary="as it must be")
            return build_result(planned.case, [word])

        def compare(self, verdict):
            word = Finding(judge="effect", verdict=verdict, summary="because of " + verdict.value)
            return build_result(build_case(), [word])

    return Scripted()


@pytest.fixture
def check(harness_session, monkeypatch, check_case):
    class Planned:
        case = build_case(workload=load_workload("short", load_model("tiny-llama")))

    def run(verdict):
        scripted = type(harness_session).compare
        monkeypatch.setattr(harness_session, "compare", lambda _p: scripted(None, verdict),
                            raising=False)
        return check_case(Planned())

    return run


@pytest.mark.parametrize("verdict", list(Verdict), ids=lambda v: v.value)
def test_verdict(check, verdict):
    check(verdict)


def test_refused_by_a_call_of_the_function():
    from harness.api import assert_result

    word = Finding(judge="run", verdict=Verdict.UNSUPPORTED, summary="no graphs here")
    assert_result(build_result(build_case(), [word]))
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """A folder with the root conftest and a small matrix; `project(*args)` runs pytest there."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    (pytester.path / "small.yaml").write_text(SMALL)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(*args):
        return pytester.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args)

    run.path = pytester.path
    run.write = lambda text: pytester.makepyfile(test_project=text)
    return run


def loaded(path):
    return [harness.load_run(folder) for folder in sorted(path.iterdir())]


def test_verdicts_in_pytests_terms(project):
    project.write(SCRIPTED)

    child = project("-rs", "-v")

    child.assert_outcomes(passed=1, failed=3, skipped=2)
    lines = child.outlines
    for verdict in ("FAIL", "VACUOUS", "ERROR"):
        assert any(f"test_verdict[{verdict}] FAILED" in line for line in lines)
        assert any(line.startswith(f"{verdict}: toy/") for line in lines)
        assert any("effect" in line and f"because of {verdict}" in line for line in lines)
    child.stdout.fnmatch_lines(["SKIPPED*because of UNSUPPORTED*", "SKIPPED*no graphs here*"])
    child.stdout.fnmatch_lines(["*run it again: harness run --cell x"])
    child.stdout.no_fnmatch_line("*Traceback*")


def test_collecting_loads_no_torch_and_launches_nothing(project):
    project.write(MATRIX_TEST)
    (project.path / "sub").mkdir()
    (project.path / "conftest.py").write_text(
        CONFTEST
        + "\nimport sys\ndef pytest_sessionfinish(session):\n"
        + "    heavy = [m for m in ('torch', 'harness.refengine') if m in sys.modules]\n"
        + "    print('LOADED', heavy)\n"
    )

    child = project("--collect-only", "-q", "-s", "--harness-matrix", "small.yaml")

    assert 0 == child.ret
    assert any("LOADED []" in line for line in child.outlines)
    assert not (project.path / "reports").exists()
    ids = [line for line in child.outlines if "::" in line]
    assert 8 == len(ids)
    assert "test_project.py::test_cell[tiny-llama/v2-prefetch-g2n1s3-pin1-eager]" in ids
    assert "test_project.py::test_cell[tiny-llama/null-v1-none-eager]" in ids


@pytest.mark.parametrize(
    ("expression", "num"),
    [("offload", 8), ("uva and runner_v2", 1), ("prefetch", 2), ("not runner_v1", 4)],
)
def test_markers_choose_cells(project, expression, num):
    project.write(MATRIX_TEST)

    child = project("--collect-only", "-q", "--harness-matrix", "small.yaml", "-m", expression)

    assert num == len([line for line in child.outlines if "::" in line])


def test_markers_are_explained(project):
    child = project("--markers")

    for name in ("offload", "runner_v1", "runner_v2", "uva", "prefetch", "inside"):
        child.stdout.fnmatch_lines([f"@pytest.mark.{name}:*"])


def test_a_matrix_runs_on_two_workers_into_the_chosen_store(project):
    project.write(MATRIX_TEST)

    child = project(
        "-n", "2", "-v", "--harness-matrix", "small.yaml", "--harness-store", "kept",
        "--junitxml", "j.xml",
    )  # fmt: skip

    child.assert_outcomes(passed=8)
    child.stdout.fnmatch_lines(["*PASSED*test_cell?tiny-llama/v1-uva-gb1-pin1-eager?*"])
    assert not (project.path / "reports").exists()
    sessions = loaded(project.path / "kept")
    assert {"gw0", "gw1"} == {s.manifest["worker"] for s in sessions}
    cells = [r.case.anchor for s in sessions for r in s.results if r.counts]
    assert 5 == len(cells) == len(set(cells))
    for session in sessions:
        guards = [r.case for r in session.results if not r.counts]
        assert len(guards) == len({case.case_id for case in guards})
        judged = {r.case.baseline.runner for r in session.results if r.case.role == "case"}
        assert judged <= {case.baseline.runner for case in guards if case.role == "null"}
        assert "control" in {case.role for case in guards}
    assert 'name="verdict" value="PASS"' in (project.path / "j.xml").read_text()


def test_model_and_fault_options_reach_every_cell(project):
    project.write(MATRIX_TEST)

    child = project(
        "--harness-matrix", "small.yaml", "--harness-model", "seeded-qwen3",
        "--harness-fault", "offloader-not-installed", "--harness-cold",
        "-k", "prefetch and not control",
    )  # fmt: skip

    child.assert_outcomes(passed=1, failed=1, deselected=6)
    child.stdout.fnmatch_lines(["VACUOUS: seeded-qwen3/v2-prefetch-*offloader-not-installed*"])
    (session,) = loaded(project.path / "reports")
    runs = list((session.folder / "runs").glob("*/run.json"))
    assert {False} == {json.loads(path.read_text())["warm"] for path in runs}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--harness-matrix", "no.yaml"], "cannot read matrix file 'no.yaml'"),
        (["--harness-model", "tiny-lama"], "Did you mean 'tiny-llama'"),
        (["--harness-fault", "nope"], "Unknown fault 'nope'"),
    ],
)
def test_a_bad_option_is_a_usage_error_in_one_line(project, args, said):
    project.write(MATRIX_TEST)

    child = project("--collect-only", "-q", *args)

    assert child.ret != 0
    assert any(said in line for line in child.outlines + child.errlines)
    child.stdout.no_fnmatch_line("*Traceback*")


INTERRUPTED = """
def test_one(planned_case, check_case):
    check_case(planned_case)
    if planned_case.case.role == "case":
        raise KeyboardInterrupt
"""


def test_an_interrupted_pytest_session_is_not_recorded_as_passed(project):
    project.write(INTERRUPTED)

    child = project("--harness-matrix", "small.yaml", "-k", "v1-uva and not control")

    assert 2 == child.ret
    (session,) = loaded(project.path / "reports")
    assert ["null", "control", "case"] == [r.case.role for r in session.results]
    assert 3 == session.outcome.exit_code
    assert session.outcome.sentence.startswith("Interrupted: ")
