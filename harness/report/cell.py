"""One cell of the matrix as a reader meets it: verdict, proofs in order, then the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from harness.core import CaseResult, Finding, Run, RunStatus, Verdict

from .effect import EffectRow, view_config, view_effect
from .labels import filter_axes, row_label
from .memory import MemoryView, view_memory
from .placement import PlacementView, view_placement
from .timeline import TimelineView, view_timeline
from .tokens import TokensView, view_tokens
from .words import EMULATION, MARKS, MEANINGS, PROOFS, capitalised, is_emulation, proof_heading

LOG_LINES = 40
"""Last lines of a log that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One judge's tile."""

    judge: str
    verdict: str
    """Verdict name, or `SILENT` when the judge gave no word."""
    mark: str
    heading: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """One run that did not end well."""

    side: str
    status: str
    error: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """Everything the page shows of one case."""

    anchor: str
    """Unique within the page."""
    verdict: str
    mark: str
    meaning: str
    title: str
    """One sentence: what is wrong, or what was proven."""
    role: str
    tier: str
    model: str
    baseline_id: str
    target_id: str
    row: str
    """Label of its row: the offload setting."""
    axes: Mapping[str, str]
    """The filter axes: runner, backend, pin, model."""
    facts: tuple[tuple[str, str], ...]
    proofs: tuple[Proof, ...]
    notes: tuple[str, ...]
    breakdowns: tuple[Breakdown, ...]
    tokens: TokensView | None
    effect: tuple[EffectRow, ...]
    config: tuple[EffectRow, ...]
    placement: PlacementView | None
    timeline: TimelineView | None
    memory: MemoryView | None
    warnings: tuple[tuple[str, str], ...]
    """Side and text."""
    not_observed: tuple[tuple[str, str], ...]
    """Side, and what was not seen there."""
    history: str
    """Its verdicts over the releases, when there are several."""
    emulation: str
    """What emulation means, when this cell ran under it."""
    waived: str
    """Why it may be red, where its waive holds."""
    command: str

    @property
    def element_id(self) -> str:
        """The element's id; also the page's hash, so a link works without any script."""
        return "case=" + self.anchor.replace(" ", "_")

    @property
    def href(self) -> str:
        """Link to the cell within the page."""
        return "#case=" + quote(self.anchor.replace(" ", "_"), safe="/!+~:@-._")


def view_cell(
    result: CaseResult, runs: Mapping[str, Run], anchor: str, *, history: str = ""
) -> CellView:
    """Build the view of one case; runs that are missing leave their parts empty."""
    case = result.case
    baseline = runs.get(result.baseline_run_id or "")
    target = runs.get(result.target_run_id or "")
    return CellView(
        anchor=anchor,
        verdict=result.verdict.value,
        mark=MARKS[result.verdict.value],
        meaning=MEANINGS[result.verdict.value],
        title=lead_sentence(result),
        role=case.role,
        tier=case.tier.value.upper(),
        model=case.workload.model.display_name,
        baseline_id=case.baseline.setting_id,
        target_id=case.target.setting_id,
        row=row_label(result),
        axes=filter_axes(case.target, case.workload.model.name),
        facts=_facts(result, baseline, target),
        proofs=_proofs(result),
        notes=_notes(result),
        breakdowns=tuple(_breakdowns(baseline, target)),
        tokens=view_tokens(result, baseline, target),
        effect=view_effect(result, baseline, target),
        config=view_config(result, baseline, target),
        placement=view_placement(case, target),
        timeline=view_timeline(target),
        memory=view_memory(result, baseline, target),
        warnings=_warnings(baseline, target),
        not_observed=_not_observed(baseline, target),
        history=history,
        emulation=EMULATION if is_emulation(case.target.engine) else "",
        waived=case.waive.reason if result.is_waived and case.waive else "",
        command=result.command,
    )


def lead_sentence(result: CaseResult) -> str:
    """What decided the verdict, in one sentence."""
    lead = result.lead
    if lead is None:
        return "No judge gave a word: nothing was compared"
    if result.verdict is not Verdict.PASS:
        return capitalised(lead.summary)
    order = sorted(result.findings, key=lambda f: _rank(f.judge))
    proven = [_heading(f) for f in order if f.verdict is Verdict.PASS]
    return "Proven: " + ", ".join(proven)


def _rank(judge: str) -> int:
    return PROOFS.index(judge) if judge in PROOFS else len(PROOFS)


def _proofs(result: CaseResult) -> tuple[Proof, ...]:
    """A tile for each finding in reading order; judges that were named but silent come too.

    No tile at all when no proof was attempted: the title and the run's own words say it all.
    """
    findings = sorted(result.findings, key=lambda f: _rank(f.judge))
    if not any(f.judge in PROOFS for f in findings):
        return ()
    tiles = [(f.judge, _proof(f)) for f in findings]
    spoke = {f.judge for f in findings}
    silent = [j for j in result.case.judges if j not in spoke and j in PROOFS]
    tiles += [(judge, _silent(judge)) for judge in silent]
    return tuple(tile for _, tile in sorted(tiles, key=lambda pair: _rank(pair[0])))


def _proof(finding: Finding) -> Proof:
    return Proof(
        judge=finding.judge,
        verdict=finding.verdict.value,
        mark=MARKS[finding.verdict.value],
        heading=_heading(finding),
        summary=capitalised(finding.summary),
    )


def _heading(finding: Finding) -> str:
    if finding.verdict is Verdict.PASS and finding.divergence is not None:
        return "same output up to a near-tie"
    return proof_heading(finding.judge, finding.verdict)


def _silent(judge: str) -> Proof:
    summary = "No word: this case asks nothing of it."
    return Proof(judge=judge, verdict="SILENT", mark="·", heading=judge, summary=summary)


def _notes(result: CaseResult) -> tuple[str, ...]:
    """What a reader must know before the evidence."""
    expected = result.case.expected
    notes = []
    if result.case.role == "null":
        notes.append("Null run: the baseline against itself. It must PASS.")
    if result.case.role == "control":
        notes.append("Control: a fault was planted on purpose. It must FAIL.")
    if result.case.target.faults:
        notes.append("Planted fault: " + ", ".join(result.case.target.faults))
    if result.is_waived and (waive := result.case.waive):
        where = f" ({waive.link})" if waive.link else ""
        notes.append(f"Waived until {waive.expires}: {waive.reason}{where}")
    notes += [f"Asked for and never looked at: {r}" for r in expected.ignored_requests]
    notes += [f"Selector that matches no parameter: {s}" for s in expected.unmatched_selectors]
    return tuple(notes)


def _breakdowns(baseline: Run | None, target: Run | None) -> list[Breakdown]:
    found = []
    for side, run in (("baseline", baseline), ("target", target)):
        if run is None or (run.status is RunStatus.OK and not _drift(run)):
            continue
        drift = [f"not found in the engine: {name}" for name in _drift(run)]
        log = [*drift, *run.log_tail[-LOG_LINES:]]
        error = run.error or ""
        status = run.status.value
        found.append(Breakdown(side=side, status=status, error=error, log="\n".join(log)))
    return found


def _drift(run: Run) -> tuple[str, ...]:
    return run.probe.drift if run.probe is not None else ()


def _warnings(baseline: Run | None, target: Run | None) -> tuple[tuple[str, str], ...]:
    return tuple(
        (side, text)
        for side, run in (("baseline", baseline), ("target", target))
        if run is not None and run.probe is not None
        for text in run.probe.warnings
    )


def _not_observed(baseline: Run | None, target: Run | None) -> tuple[tuple[str, str], ...]:
    """What either side could not see; `both` where they say the same."""
    left, right = _unseen(baseline), _unseen(target)
    both = [("both sides", text) for text in right if text in left]
    one = [("target", text) for text in right if text not in left]
    return (*both, *one, *(("baseline", text) for text in left if text not in right))


def _unseen(run: Run | None) -> list[str]:
    if run is None or run.probe is None:
        return []
    probe = run.probe
    found = list(probe.not_observed)
    for name, trace in (("ordering", probe.ordering), ("integrity", probe.integrity)):
        found += [f"{name}: {text}" for text in (trace.not_observed if trace else ())]
    return list(dict.fromkeys(found))


def _facts(
    result: CaseResult, baseline: Run | None, target: Run | None
) -> tuple[tuple[str, str], ...]:
    """Small print under the title."""
    case = result.case
    facts = [
        ("model", case.workload.model.display_name),
        ("workload", case.workload.name),
        ("contract", case.tier.value.upper()),
        ("took", f"{result.duration_s:.1f} s"),
    ]
    if target is not None and target.probe is not None:
        facts.append(("engine", f"{case.target.engine} {target.probe.engine_version}"))
    if case.target.release:
        facts.append(("release", case.target.release))
    ids = [run.run_id for run in (baseline, target) if run is not None]
    facts += [("runs", ", ".join(dict.fromkeys(ids)))] if ids else []
    return tuple(facts)
