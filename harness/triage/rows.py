"""What one trial of a fault showed, and whether that is what the catalogue says it must show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core import CaseResult, Finding, Run, Verdict
from harness.faults import Fault
from harness.judge import judge_case

from .faultcases import Trial
from .faulty_tests import FaultyTest

OBJECTIONS = (Verdict.FAIL, Verdict.VACUOUS)
PLAIN_TOKENS = 5
"""Tokens of the first prompt that a plain paired test compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRow:
    """One trial of one fault."""

    fault: str
    runner: str
    mode: str
    schedule: str
    case_id: str
    anchor: str
    verdict: str
    objected: Mapping[str, str]
    """Judge -> what it said; each said FAIL or VACUOUS."""
    silent: tuple[str, ...]
    """Judges that said PASS."""
    plain_passes: bool | None
    """What a plain paired test would have said; None when there was no output."""
    ended: str
    """Why nothing could be judged; empty when it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """What became of one fault, equivalent or faulty test."""

    name: str
    kind: str
    """`mutant`, `equivalent` or `test`."""
    summary: str
    seen_in: tuple[str, ...]
    defect_class: str
    killed_by: tuple[str, ...]
    """Judges that the catalogue names."""
    blind: str
    needs: str
    """What the engine lacks to run it; empty when it ran."""
    rows: tuple[KillRow, ...]
    is_right: bool
    """Killed, silent or refused, as it must be; False when it did not run."""
    why: str
    """Why it is not right; empty when it is."""
    is_missed_by_plain: bool = False
    """A plain paired test passes wherever the device is quick to copy and to compute."""
    is_missed_by_tokens: bool = False
    """Comparing every token and log-probability passes there."""


def build_line(
    fault: Fault,
    trials: Sequence[Trial],
    results: Mapping[str, CaseResult],
    runs: Mapping[str, Run],
    judges: Sequence[str],
) -> FaultLine:
    """What became of one fault.

    Args:
        fault: mutant or equivalent.
        trials: of all faults.
        results: case id -> result, for every trial.
        runs: run id -> run.
        judges: the only ones that were asked; empty when all were.
    """
    mine = [trial for trial in trials if trial.fault.name == fault.name]
    rows = tuple(_row(t, results[t.planned.case.case_id], runs) for t in mine)
    why = f"needs {fault.needs}" if fault.needs else _why_wrong(fault, rows, judges)
    ordinary = [row for row in rows if row.schedule == "in_order"]
    return FaultLine(
        name=fault.name,
        kind=fault.kind,
        summary=fault.summary,
        seen_in=fault.seen_in,
        defect_class=fault.defect_class,
        killed_by=fault.killed_by,
        blind=fault.blind,
        needs=fault.needs,
        rows=rows,
        is_right=not why,
        why=why,
        is_missed_by_plain=any(row.plain_passes for row in ordinary),
        is_missed_by_tokens=any("tokens" in row.silent for row in ordinary),
    )


def _row(trial: Trial, result: CaseResult, runs: Mapping[str, Run]) -> KillRow:
    objected = {f.judge: f.summary for f in result.findings if f.verdict in OBJECTIONS}
    broken = [f for f in result.findings if f.verdict in (Verdict.ERROR, Verdict.UNSUPPORTED)]
    return KillRow(
        fault=trial.fault.name,
        runner=trial.runner or "",
        mode=trial.mode,
        schedule=trial.schedule,
        case_id=result.case.case_id,
        anchor=result.case.anchor,
        verdict=result.verdict.value,
        objected=objected,
        silent=tuple(f.judge for f in result.findings if f.verdict is Verdict.PASS),
        plain_passes=plain_test_passes(
            runs.get(result.baseline_run_id or ""), runs.get(result.target_run_id or "")
        ),
        ended=broken[0].summary if broken else "",
    )


def plain_test_passes(baseline: Run | None, target: Run | None) -> bool | None:
    """Whether the first tokens of the first prompt are equal; None when there is no output."""
    if baseline is None or target is None or not baseline.outputs or not target.outputs:
        return None
    one, other = baseline.outputs[0].token_ids, target.outputs[0].token_ids
    return one[:PLAIN_TOKENS] == other[:PLAIN_TOKENS]


def _why_wrong(fault: Fault, rows: Sequence[KillRow], judges: Sequence[str]) -> str:
    """Why a fault that ran is not killed, or an equivalent not silent; empty when it is right."""
    if broken := next((row for row in rows if row.ended), None):
        return f"{_place(broken)} could not be judged: {broken.ended}"
    if fault.kind == "equivalent":
        return _why_not_silent(fault, rows, judges)
    named = set(fault.killed_by) & set(judges) if judges else set(fault.killed_by)
    wanted = fault.num_judges if not judges else 1
    for row in rows:
        if not (named or set(judges)) & set(row.objected):
            return f"survives under {_place(row)}"
        tries = [r for r in rows if (r.runner, r.mode) == (row.runner, row.mode)]
        caught = {judge for r in tries for judge in r.objected} & (named or set(judges))
        if len(caught) < wanted:
            return f"only {', '.join(sorted(caught))} catches it under {_place(row)}"
    return ""


def _why_not_silent(fault: Fault, rows: Sequence[KillRow], judges: Sequence[str]) -> str:
    may = set(fault.killed_by)
    for row in rows:
        for judge, text in row.objected.items():
            if judge not in may or fault.says not in text:
                return f"false alarm of {judge} under {_place(row)}: {text}"
        if missing := (may & set(judges) if judges else may) - set(row.objected):
            return f"{', '.join(sorted(missing))} says nothing under {_place(row)}"
    return ""


def _place(row: KillRow) -> str:
    schedule = "" if row.schedule == "in_order" else f" {row.schedule}"
    return f"{row.runner} {row.mode}{schedule}".strip()


def build_test_line(
    test: FaultyTest,
    result: CaseResult | None,
    runs: Mapping[str, Run],
    judges: Sequence[str],
) -> FaultLine:
    """What became of one faulty test; `result` is None when it could not run."""
    why, row = f"needs {test.needs}", None
    if result is not None:
        findings = _tampered(test, result, runs)
        refusals = {f.judge: f.summary for f in findings if f.verdict is Verdict.VACUOUS}
        row = KillRow(
            fault=test.name,
            runner=result.case.target.runner or "",
            mode="",
            schedule="in_order",
            case_id=result.case.case_id,
            anchor=result.case.anchor,
            verdict="VACUOUS" if refusals else result.verdict.value,
            objected=refusals,
            silent=tuple(f.judge for f in findings if f.verdict is Verdict.PASS),
            plain_passes=plain_test_passes(
                runs.get(result.baseline_run_id or ""),
                runs.get(result.target_run_id or ""),
            ),
            ended="",
        )
        is_refused = test.says in refusals.get(test.refused_by, "")
        is_asked = not judges or test.refused_by in (*judges, "case")
        why = "" if is_refused else "not refused" if is_asked else "its judge was not asked"
    return FaultLine(
        name=test.name,
        kind="test",
        summary=test.summary,
        seen_in=(),
        defect_class="",
        killed_by=(test.refused_by,),
        blind="",
        needs=test.needs,
        rows=(row,) if row is not None else (),
        is_right=not why,
        why=why,
    )


def _tampered(test: FaultyTest, result: CaseResult, runs: Mapping[str, Run]) -> Sequence[Finding]:
    """What the judges say once the run is as the bad test would have measured it."""
    if test.tamper is None:
        return result.findings
    baseline = runs[result.baseline_run_id or ""]
    target = runs[result.target_run_id or ""]
    return judge_case(result.case, baseline, test.tamper(baseline, target))
