"""A session as plain view objects: everything a page needs, nothing it has to work out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.core import CaseResult, ExitCode, HostInfo, Json, Outcome, Run, Verdict

from .cell import CellView, view_cell
from .grid import GridView, view_grid
from .killtable import KillTableView, kill_outcome, view_kill_table
from .paired import PairedRow, view_paired
from .words import DOWNGRADED, MARKS, MEANINGS, count, listing

_AXES: tuple[str, ...] = ("runner", "backend", "pin", "model")
_WORST: tuple[str, ...] = ("FAIL", "ERROR", "VACUOUS", "UNSUPPORTED", "PASS")


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
    paired: tuple[PairedRow, ...]
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
    worst = sorted(
        (c for r, c in pairs if r.counts or not r.behaved),
        key=lambda c: _WORST.index(c.verdict),
    )
    return ReportView(
        title=str(manifest.get("title") or _title(results)),
        sentence=outcome.sentence,
        tone=_tone(outcome, results),
        exit_code=outcome.exit_code,
        exit_meaning=_exit_meaning(outcome.exit_code) if kill_table is None else "",
        facts=(
            *((("note", DOWNGRADED),) if outcome.downgraded else ()),
            *_facts(results, runs, manifest),
        ),
        pills=tuple(_pill(v, outcome) for v in MARKS),
        controls=_controls(pairs, outcome),
        grid=view_grid(counting),
        paired=view_paired(pairs, runs),
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
    pairs = []
    for result in sorted(results, key=_matrix_order):
        seen[result.case.anchor] += 1
        number = seen[result.case.anchor]
        anchor = result.case.anchor + (f"~{number}" if number > 1 else "")
        pairs.append((result, view_cell(result, runs, anchor)))
    return pairs


def _matrix_order(result: CaseResult) -> tuple[object, ...]:
    """Offload setting, model, runner: results arrive in the order their runs ended."""
    setting, role = result.case.target, result.case.role
    offload = setting.offload
    backend = offload.resolved_backend
    return (
        ("case", "runner", "null", "control").index(role),
        ("none", "uva", "prefetch").index(backend),
        offload.cpu_offload_gb,
        (offload.offload_group_size, offload.offload_num_in_group, offload.offload_prefetch_step),
        sorted(offload.cpu_offload_params | offload.offload_params),
        (not offload.uva, not offload.pin_memory),
        result.case.workload.model.name,
        setting.runner or "",
        result.case.anchor,
        result.case.case_id,
    )


def _title(results: Sequence[CaseResult]) -> str:
    engines = sorted({r.case.target.engine for r in results})
    return f"Offload on the {' and '.join(engines)} engine" if engines else "Offload"


def _tone(outcome: Outcome, results: Sequence[CaseResult]) -> str:
    by_code = {ExitCode.FAIL: "FAIL", ExitCode.ERROR: "ERROR", ExitCode.VACUOUS: "VACUOUS"}
    if outcome.exit_code == ExitCode.UNSUPPORTED:
        return "UNSUPPORTED"
    if any(not r.behaved for r in results) and outcome.exit_code != ExitCode.FAIL:
        return "ERROR"
    return by_code.get(ExitCode(outcome.exit_code), "PASS" if outcome.passed else "ERROR")


def _exit_meaning(code: int) -> str:
    return {
        0: "all cells pass and are proven",
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
        meaning=MEANINGS[verdict] + (f"; {DOWNGRADED}" if outcome.downgraded else ""),
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
    values = {axis: tuple(sorted({c.axes[axis] for c in cells})) for axis in _AXES}
    return tuple((axis, found) for axis, found in values.items() if len(found) > 1)


def _facts(
    results: Sequence[CaseResult], runs: Mapping[str, Run], manifest: Mapping[str, Json]
) -> tuple[tuple[str, str], ...]:
    """Small print of the header; a fact nobody recorded is left out."""
    models = dict.fromkeys(r.case.workload.model.display_name for r in results)
    facts = [
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
