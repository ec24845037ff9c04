"""The pytest plugin: options, markers, the cells of a matrix as tests, assertion texts, the record.

Collecting launches nothing and imports neither torch nor an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from harness.core import CaseResult, Outcome, Plan, PlannedCase, Setting
    from harness.pipeline import Session
    from harness.settings.engines import EngineEntry

_STORE = pytest.StashKey[Path]()
_CUT_SHORT = pytest.StashKey[bool]()
_PLANS = pytest.StashKey[dict[str, Any]]()


class CheckCase(Protocol):
    """The `check_case` fixture: runs one planned case and asserts its verdict."""

    def __call__(self, planned: PlannedCase) -> CaseResult:
        """Run and assert one case."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `harness` option group."""
    group = parser.getgroup("harness", "weight-offload harness")
    group.addoption("--harness-model", metavar="NAME", help="model of every case (models.yaml)")
    group.addoption("--harness-matrix", metavar="FILE", help="matrix of the matrix-driven tests")
    group.addoption("--harness-engine", metavar="NAME", help="engine instead of the matrix's")
    group.addoption(
        "--harness-python",
        action="append",
        default=[],
        metavar="[LABEL=]PATH",
        help="interpreter of a release of that engine; may repeat",
    )
    group.addoption("--harness-fault", action="append", default=[], metavar="NAME")
    group.addoption("--harness-store", metavar="DIR", help="folder of the record (reports/)")
    group.addoption("--harness-cold", action="store_true", help="a new interpreter per launch")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and choose one record folder for the whole invocation."""
    for line in (
        "offload: proves weight offload",
        "runner_v1: the target runs model runner V1",
        "runner_v2: the target runs model runner V2",
        "uva: the target offloads by UVA",
        "prefetch: the target offloads by prefetch",
        "cpu_offload: the target offloads by accelerate's cpu_offload",
        "disk_offload: the target offloads by accelerate's disk_offload",
        "device_map: the target offloads by accelerate's device map",
        "inside: reaches into a live engine in this process",
    ):
        config.addinivalue_line("markers", line)
    config.stash[_PLANS] = {}
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        config.stash[_STORE] = Path(workerinput["harness_store"])
    else:
        root = Path(config.getoption("--harness-store") or config.rootpath / "reports")
        config.stash[_STORE] = root


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the record folder to an xdist worker."""
    node.workerinput["harness_store"] = str(node.config.stash[_STORE])


def matrix_plan(config: pytest.Config) -> Plan:
    """The plan of the matrix named on the command line, made once per process."""
    from harness.cells import plan_matrix
    from harness.interpreters import open_matrix

    plans = config.stash[_PLANS]
    if "matrix" not in plans:
        path = config.getoption("--harness-matrix")
        model = config.getoption("--harness-model")
        plans["matrix"] = plan_matrix(
            open_matrix(
                Path(path) if path else None,
                engine=config.getoption("--harness-engine"),
                pythons=config.getoption("--harness-python"),
            ),
            models=[model] if model else (),
            faults=config.getoption("--harness-fault"),
        )
    plan: Plan = plans["matrix"]
    return plan


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each cell for functions that ask for `planned_case`, and of each release.

    Functions that ask for `harness_engine` run once for each `--harness-python`.
    """
    from harness.core import HarnessError

    try:
        entries = engine_entries(metafunc.config)
        if "harness_engine" in metafunc.fixturenames and entries:
            ids = [entry.place for entry in entries]
            metafunc.parametrize("harness_engine", entries, ids=ids, scope="session")
        if "planned_case" in metafunc.fixturenames:
            _parametrize_cells(metafunc, matrix_plan(metafunc.config))
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


def engine_entries(config: pytest.Config) -> Sequence[EngineEntry]:
    """The engine that the command line names, once for each interpreter; none where it does not."""
    from harness.interpreters import choose_interpreters

    engine, pythons = config.getoption("--harness-engine"), config.getoption("--harness-python")
    plans = config.stash[_PLANS]
    if "engines" not in plans:
        plans["engines"] = (engine or pythons) and choose_interpreters(
            engine or "reference", pythons, option="--harness-python"
        )
    return plans["engines"] or ()


def _parametrize_cells(metafunc: pytest.Metafunc, plan: Plan) -> None:
    metafunc.parametrize(
        "planned_case",
        [
            pytest.param(p, id=p.case.anchor, marks=[getattr(pytest.mark, m) for m in _marks(p)])
            for p in plan.cases
        ]
        + [
            pytest.param(None, id=s.case.anchor, marks=[pytest.mark.skip(reason=s.reason)])
            for s in plan.unsupported
        ],
    )


def _marks(planned: PlannedCase) -> list[str]:
    target = planned.case.target
    marks = ["offload"]
    marks += [f"runner_{target.runner}"] if target.runner else []
    backend = target.offload.resolved_backend
    return marks + ([backend] if backend != "none" else [])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember, before the fixtures end, that the tests did not all have their turn."""
    cut = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    session.config.stash[_CUT_SHORT] = exitstatus in cut or bool(session.shouldfail)


@pytest.fixture(scope="session")
def harness_model(request: pytest.FixtureRequest) -> str:
    """The model's name: `--harness-model`, else tiny-llama."""
    return request.config.getoption("--harness-model") or "tiny-llama"


@pytest.fixture(scope="session")
def harness_engine() -> EngineEntry:
    """The engine under test: the embedded one, or each that the command line names."""
    from harness.settings.engines import EngineEntry

    return EngineEntry(name="reference")


@pytest.fixture(scope="session")
def harness_session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """An open session; each unique setting is launched once in it, for all tests of the process."""
    from harness.pipeline import Options, Session

    options = Options(cold=request.config.getoption("--harness-cold"), jobs=1)
    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    manifest = {"door": "pytest", "worker": worker}
    store = request.config.stash[_STORE]
    with Session(store, manifest=manifest, options=options) as session:
        yield session
        if request.config.stash.get(_CUT_SHORT, False):
            session.mark_cut_short()
        outcome = session.finish()
    check_outcome(session.results, outcome)


@pytest.fixture
def check_case(harness_session: Session, record_property: Any) -> CheckCase:
    """Run a planned case; PASS returns, UNSUPPORTED skips, every other verdict fails.

    A PASS counts only where the null case of its baseline and the session's planted fault are as
    they must be; both run before the first comparison that needs them.
    """

    def check(planned: PlannedCase) -> CaseResult:
        is_guard = planned.case.role in ("null", "control")
        guards = [] if is_guard else run_guards(harness_session, planned)
        run = harness_session.compare_once if is_guard else harness_session.compare
        result = run(planned)
        for axis, value in planned.case.axes.items():
            record_property(axis, value)
        record_property("verdict", result.verdict.value)
        return judge_outcome(result, guards)

    return check


def run_guards(session: Session, planned: PlannedCase) -> list[CaseResult]:
    """The null case of a comparison's baseline, and the engine's one planted fault."""
    from dataclasses import replace

    from harness.api import plan_controls

    case = planned.case
    target = replace(case.target, faults=())
    null, control = plan_controls(case.baseline, [target], case.workload)
    place = _place(case.target)
    controls = (r for r in session.results if r.case.role == "control")
    planted = next((r for r in controls if _place(r.case.target) == place), None)
    return [session.compare_once(null), planted or session.compare_once(control)]


def _place(setting: Setting) -> tuple[str, str, str | None]:
    return setting.engine, setting.release, setting.python


def judge_outcome(result: CaseResult, guards: Sequence[CaseResult] = ()) -> CaseResult:
    """Turn a result into pytest's terms: null case and control must be as planned.

    Raises:
        ComparisonError: the verdict's own; ComparisonErrored for a guard that is not right.
    """
    from harness.api import assert_guard, assert_result
    from harness.core import ComparisonUnsupported

    if not result.counts:
        assert_guard(result)
        return result
    if result.is_waived and result.case.waive:
        pytest.xfail(f"{result.verdict.value}, waived: {result.case.waive.reason}")
    try:
        assert_result(result)
    except ComparisonUnsupported as refused:
        pytest.skip(str(refused))
    for guard in guards:
        assert_guard(guard)
    return result


def check_outcome(results: Sequence[CaseResult], outcome: Outcome) -> None:
    """Refuse to end well where something passed although a guard is not right.

    Raises:
        ComparisonErrored: with the session's sentence.
    """
    from harness.core import ComparisonErrored, Verdict

    passed = any(r.counts and r.verdict is Verdict.PASS for r in results)
    bad = next((r for r in results if not r.behaved), None)
    if passed and bad is not None:
        raise ComparisonErrored(f"ERROR: {outcome.sentence}", bad)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show a comparison's findings and its command in place of a traceback; skip what is refused.

    So a test that calls `compare_two_settings` itself is told the same as a cell of the matrix.
    """
    report: pytest.TestReport = yield  # type: ignore[assignment]
    from harness.core import ComparisonError, ComparisonUnsupported

    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, ComparisonUnsupported) and report.failed:
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, line or 0, f"Skipped: {error}")
    elif isinstance(error, ComparisonError) and report.failed:
        report.longrepr = explain(error)
    return report  # type: ignore[return-value]


def explain(error: Exception) -> str:
    """The text of a failed comparison: verdict, every finding, and the command to rerun it."""
    result: CaseResult | None = getattr(error, "result", None)
    lines = [str(error)]
    if result is not None:
        lines += [f"  {f.verdict.value:<11} {f.judge:<10} {f.summary}" for f in result.findings]
        lines.append(f"  run it again: {result.command}")
    return "\n".join(lines)
