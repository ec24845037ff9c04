"""A session as plain view objects: everything a page needs, nothing it has to work out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.core import CaseResult, ExitCode, HostInfo, Json, Outcome, Run, Verdict

from .cell import CellView, view_cell
from .coverage import CoverageRow, is_telling, view_coverage
from .grid import GridView, view_grid
from .history import WORST, histories
from .killtable import KillTableView, kill_outcome, view_kill_table
from .order import has_releases, matrix_order
from .paired import PairedRow, view_paired
from .releases import ReleasesView, name_engines, view_releases
from .words import (
    EMULATION,
    MARKS,
    MEANINGS,
    count,
    describe_downgrade,
    is_emulation,
    listing,
)

_AXES: tuple[str, ...] = ("engine", "release", "runner", "backend", "pin", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pill:
    """A verdict and how many cells have it."""

    verdict: str
    mark: str
    meaning: str
    num_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The null case or the planted fault: how the harness tests itself."""

    text: str
    is_ok: bool
    cell: CellView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """One session."""

    title: str
    sentence: str
    tone: str
    """Verdict name whose colour the sentence takes."""
    exit_code: int
    exit_meaning: str
    facts: tuple[tuple[str, str], ...]
    """Label and value: models, workload, machine, null run, session."""
    pills: tuple[Pill, ...]
    controls: tuple[Control, ...]
    grid: GridView
    releases: ReleasesView | None
    """In place of the grid when a session is about real engines or several releases."""
    emulation: str
    """What emulation means, when any cell ran under it."""
    paired: tuple[PairedRow, ...]
    coverage: tuple[CoverageRow, ...]
    """Which runners really ran; empty where the counts say as much."""
    kill_table: KillTableView | None
    """Of a session of faults only."""
    filters: tuple[tuple[str, tuple[str, ...]], ...]
    """Axis and its values, only axes with more than one."""
    cells: tuple[CellView, ...]
    """Every case in matrix order, the controls last."""
    first_anchor: str
    """The cell to open when the address names none."""


def build_view(
    results: Sequence[CaseResult],
    runs: Mapping[str, Run],
    outcome: Outcome,
    manifest: Mapping[str, Json],
) -> ReportView:
    """Turn a session into view objects.

    Args:
        results: every case, controls included, in the order they ran.
        runs: run id -> run; may lack some, whose evidence is then left out.
        outcome: the session's counts, controls and sentence.
        manifest: the session's manifest; unknown or missing keys are fine.
    """
    kill_table = view_kill_table(manifest)
    outcome = kill_outcome(manifest) or outcome
    pairs = _cells(results, runs)
    counting = [(r, c) for r, c in pairs if r.counts]
    results = [result for result, _ in pairs]
    cells = tuple(cell for _, cell in pairs)
    releases = view_releases(counting, runs) if has_releases(results) else None
    rows = view_coverage(results, runs)
    worst = sorted(
        (c for r, c in pairs if r.counts or not r.behaved),
        key=lambda c: WORST.index(c.verdict),
    )
    return ReportView(
        title=str(manifest.get("title") or _title(results)),
        sentence=outcome.sentence,
        tone=_tone(outcome, results),
        exit_code=outcome.exit_code,
        exit_meaning=_exit_meaning(outcome.exit_code, results) if kill_table is None else "",
        facts=(
            *((("note", note),) if (note := describe_downgrade(outcome)) else ()),
            *_facts(results, runs, manifest, releases),
        ),
        pills=tuple(_pill(v, outcome) for v in MARKS),
        controls=_controls(pairs, outcome),
        grid=view_grid(counting),
        releases=releases,
        emulation=EMULATION if _emulated(results) else "",
        paired=view_paired(pairs, runs),
        coverage=rows if is_telling(rows) else (),
        kill_table=kill_table,
        filters=_filters(cells),
        cells=cells,
        first_anchor=worst[0].anchor if worst else "",
    )


def _cells(
    results: Sequence[CaseResult], runs: Mapping[str, Run]
) -> list[tuple[CaseResult, CellView]]:
    """Views with anchors made unique: a second one gets `~2`."""
    seen: Counter[str] = Counter()
    said = histories(results)
    pairs = []
    for result in sorted(results, key=matrix_order):
        seen[result.case.anchor] += 1
        number = seen[result.case.anchor]
        anchor = result.case.anchor + (f"~{number}" if number > 1 else "")
        history = said.get(result.case.case_id, "")
        pairs.append((result, view_cell(result, runs, anchor, history=history)))
    return pairs


def _title(results: Sequence[CaseResult]) -> str:
    if has_releases(results):
        return f"Offload on {name_engines(results)}"
    engines = sorted({r.case.target.engine for r in results})
    return f"Offload on the {' and '.join(engines)} engine" if engines else "Offload"


def _emulated(results: Iterable[CaseResult]) -> bool:
    return any(is_emulation(r.case.target.engine) for r in results)


def _tone(outcome: Outcome, results: Sequence[CaseResult]) -> str:
    by_code = {ExitCode.FAIL: "FAIL", ExitCode.ERROR: "ERROR", ExitCode.VACUOUS: "VACUOUS"}
    if outcome.exit_code == ExitCode.UNSUPPORTED:
        return "UNSUPPORTED"
    if any(not r.behaved for r in results) and outcome.exit_code != ExitCode.FAIL:
        return "ERROR"
    return by_code.get(ExitCode(outcome.exit_code), "PASS" if outcome.passed else "ERROR")


def _exit_meaning(code: int, results: Sequence[CaseResult]) -> str:
    counting = [result for result in results if result.counts]
    proven = "all cells pass and are proven"
    if any(result.is_waived for result in counting):
        proven = "each cell passes and is proven, or is red as its waive says"
        if all(result.is_waived for result in counting):
            proven = "every cell is red as its waive says: nothing is proven"
    return {
        0: proven,
        1: "at least one cell was disproved",
        2: "the request itself was wrong",
        3: "a run broke, a control misbehaved, or the session is not whole",
        4: "an effect was not proven",
        5: "every cell was refused",
    }.get(code, "")


def _pill(verdict: str, outcome: Outcome) -> Pill:
    return Pill(
        verdict=verdict,
        mark=MARKS[verdict],
        meaning="; ".join(filter(None, (MEANINGS[verdict], describe_downgrade(outcome)))),
        num_cells=outcome.counts.get(verdict, 0),
    )


def _controls(
    pairs: Sequence[tuple[CaseResult, CellView]], outcome: Outcome
) -> tuple[Control, ...]:
    """Controls that say the same as one, with their number; the link leads to the first."""
    groups: dict[tuple[str, bool], list[Control]] = {}
    for result, cell in pairs:
        if not result.counts:
            control = _control(result, cell, outcome)
            groups.setdefault((control.text, control.is_ok), []).append(control)
    return tuple(
        replace(first[0], text=f"{text} ({len(first)} times)" if len(first) > 1 else text)
        for (text, _), first in groups.items()
    )


def _control(result: CaseResult, cell: CellView, outcome: Outcome) -> Control:
    said = outcome.controls.get(result.case.case_id, "ok" if result.behaved else "")
    is_ok = result.behaved and said == "ok"
    if result.case.role == "null":
        text = "null run exact" if is_ok else f"null run is not exact: {cell.title}"
    else:
        fault = ", ".join(result.case.target.faults) or "planted fault"
        text = f"planted fault caught: {fault}" if is_ok else f"planted fault missed: {fault}"
    if said not in ("ok", "") and said not in text:
        text = f"{text} ({said})"
    return Control(text=text, is_ok=is_ok, cell=cell)


def _filters(cells: Sequence[CellView]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    values = {
        axis: tuple(sorted({c.axes[axis] for c in cells if axis in c.axes})) for axis in _AXES
    }
    return tuple((axis, found) for axis, found in values.items() if len(found) > 1)


def _facts(
    results: Sequence[CaseResult],
    runs: Mapping[str, Run],
    manifest: Mapping[str, Json],
    releases: ReleasesView | None,
) -> tuple[tuple[str, str], ...]:
    """Small print of the header; a fact nobody recorded is left out."""
    models = dict.fromkeys(r.case.workload.model.display_name for r in results)
    facts = [
        *((e.name, e.words) for e in (releases.engines if releases else ())),
        ("models" if len(models) > 1 else "model", listing(models)),
        ("computed in", listing(dict.fromkeys(r.case.workload.model.dtype for r in results))),
        ("workload", listing(dict.fromkeys(_workload(r) for r in results), 2)),
        ("machine", _machine(runs)),
        ("scope", _scope(results)),
        ("null run", _null_state(results)),
        ("session", str(manifest.get("session_id") or (results[0].session_id if results else ""))),
        ("started", str(manifest.get("started_at") or _started(results)).replace("T", " ")[:19]),
    ]
    return tuple((name, value) for name, value in facts if value)


def _scope(results: Sequence[CaseResult]) -> str:
    """What these verdicts do not speak of."""
    if _emulated(results):
        return f"emulation: {EMULATION}"
    if any(r.case.target.engine != "reference" for r in results) or not results:
        return ""
    return "the embedded engine's own offloaders; not vLLM's"


def _started(results: Sequence[CaseResult]) -> str:
    return min((r.started_at for r in results), default="")


def _workload(result: CaseResult) -> str:
    workload = result.case.workload
    prompts = count(len(workload.prompt_token_ids), "prompt")
    return f"{prompts} × {count(workload.sampling_params.max_tokens, 'token')}"  # noqa: RUF001


def _machine(runs: Mapping[str, Run]) -> str:
    hosts = dict.fromkeys(_host(r.host) for r in runs.values() if r.host is not None)
    return listing(hosts, 2)


def _host(host: HostInfo) -> str:
    cores = count(host.cpu_count, "core")
    torch = f", torch {host.torch}" if host.torch else ""
    return f"{host.device} device, {cores}, {host.platform}{torch}"


def _null_state(results: Sequence[CaseResult]) -> str:
    nulls = [r for r in results if r.case.role == "null"]
    if not nulls:
        return "not run"
    bad = [r for r in nulls if r.verdict is not Verdict.PASS]
    return f"not exact ({len(bad)} of {len(nulls)})" if bad else "exact"
