"""Every known defect against the harness: which judge caught it, and which did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.core import ExitCode, Outcome, Plan, UsageError, Verdict
from harness.faults import FAULTS, Fault
from harness.judge import JUDGES
from harness.pipeline import Session

from .faultcases import limit_judges, plan_trials
from .faulty_tests import FAULTY_TESTS, FaultyTest
from .rows import FaultLine, build_line, build_test_line


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTable:
    """All of it."""

    lines: tuple[FaultLine, ...]
    sentence: str
    exit_code: int
    outcome: Outcome

    def of(self, kind: str, *, ran: bool = True) -> tuple[FaultLine, ...]:
        """Lines of one kind, those that ran or those that could not."""
        return tuple(x for x in self.lines if x.kind == kind and (not x.needs) == ran)


def make_kill_table(
    session: Session, names: Sequence[str] = (), judges: Sequence[str] = ()
) -> KillTable:
    """Run faults through a session, and record the table in its manifest.

    Args:
        session: an open session; it is finished here.
        names: faults, equivalents and faulty tests; empty takes all.
        judges: only these are asked; empty asks all.

    Raises:
        UsageError: a name is unknown.
    """
    faults, tests = choose(names, judges)
    trials = [t for fault in faults for t in plan_trials(fault, judges)]
    built = {
        test.name: limit_judges(test.build(), judges) for test in tests if test.build is not None
    }
    try:
        cases = (*(t.planned for t in trials), *built.values())
        session.run_plan(Plan(cases=cases), controls=False)
    except KeyboardInterrupt:
        session.finish(controls=False)
        raise
    results = {result.case.case_id: result for result in session.results}
    lines = [build_line(fault, trials, results, session.runs, judges) for fault in faults]
    for test in tests:
        planned = built.get(test.name)
        result = None if planned is None else results[planned.case.case_id]
        lines.append(build_test_line(test, result, session.runs, judges))
    table = _table(tuple(lines))
    session.recorder.update_manifest(kill_table=table, outcome=table.outcome)
    return table


def try_one(session: Session, name: str) -> FaultLine:
    """What becomes of one fault, equivalent or faulty test in an open session, which stays open.

    Raises:
        UsageError: the name is unknown.
    """
    faults, tests = choose([name])
    for fault in faults:
        trials = plan_trials(fault)
        results = {t.planned.case.case_id: session.compare(t.planned) for t in trials}
        return build_line(fault, trials, results, session.runs, ())
    for test in tests:
        result = None if test.build is None else session.compare(test.build())
        return build_test_line(test, result, session.runs, ())
    raise AssertionError(f"choose() let {name!r} through")


def choose(
    names: Sequence[str], judges: Sequence[str] = ()
) -> tuple[tuple[Fault, ...], tuple[FaultyTest, ...]]:
    """The faults and the faulty tests of these names, in the catalogue's order.

    Empty takes all that the embedded engine can be tried with; faults of other engines are run
    when they are named.

    Raises:
        UsageError: a name is unknown, of one of them or of a judge.
    """
    by_name = {test.name: test for test in FAULTY_TESTS}
    for judge in judges:
        JUDGES.check(judge)
    for name in names:
        if name not in by_name:
            FAULTS.check(name)
        if name in FAULTS and FAULTS.get(name).kind == "test":
            raise UsageError(f"fault {name!r} only serves to make a faulty test; name that test")
    known = [FAULTS.get(name) for name in FAULTS]
    faults = [f for f in known if f.name in names or (not names and "reference" in f.engines)]
    return (
        tuple(fault for fault in faults if fault.kind != "test"),
        tuple(test for name, test in by_name.items() if not names or name in names),
    )


def _table(lines: tuple[FaultLine, ...]) -> KillTable:
    empty = Outcome(counts={}, controls={}, exit_code=0, sentence="")
    table = KillTable(lines=lines, sentence="", exit_code=0, outcome=empty)
    ran = [line for line in lines if not line.needs]
    code = ExitCode.PASS if all(line.is_right for line in ran) else ExitCode.FAIL
    code = code if ran else ExitCode.VACUOUS
    sentence = _sentence(table)
    verdicts = [row.verdict for line in lines for row in line.rows]
    counts = {v.value: verdicts.count(v.value) for v in Verdict}
    outcome = Outcome(counts=counts, controls={}, exit_code=int(code), sentence=sentence)
    return replace(table, sentence=sentence, exit_code=int(code), outcome=outcome)


def _sentence(table: KillTable) -> str:
    parts, wrong = [], [line for line in table.lines if not line.is_right and not line.needs]
    for kind, noun, verb in (
        ("mutant", "defects", "caught on every runner and mode"),
        ("equivalent", "equivalent mutants", "left in peace"),
        ("test", "faulty tests", "refused"),
    ):
        if found := table.of(kind):
            right = sum(line.is_right for line in found)
            parts.append(f"{right} of {len(found)} {noun} {verb}")
    mutants = table.of("mutant")
    if mutants:
        plain = sum(line.is_missed_by_plain for line in mutants)
        tokens = sum(line.is_missed_by_tokens for line in mutants)
        parts.append(f"a plain paired test would have missed {plain} of {len(mutants)}")
        parts.append(f"comparing all tokens, {tokens}")
    waiting = sum(bool(line.needs) for line in table.lines)
    if waiting:
        parts.append(f"{waiting} not yet runnable")
    text = "; ".join(parts) or "nothing was run"
    lead = f"Wrong: {wrong[0].name}: {wrong[0].why}. " if wrong else ""
    return f"{lead}{text[0].upper()}{text[1:]}."
