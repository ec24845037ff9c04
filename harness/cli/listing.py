"""`harness list`: the cells of a matrix, the models, or the CI jobs made from them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from harness.cells import known_bad_cases, plan_matrix, target_cases
from harness.core import Case, Plan, UsageError
from harness.interpreters import open_matrix
from harness.settings import list_models

from .console import (
    CellOption,
    EngineOption,
    FaultOption,
    JsonOption,
    MatrixOption,
    ModelOption,
    PythonOption,
    SelectOption,
    count,
    out,
    print_json,
    rerun,
    select_cells,
)


def list_cells(
    matrix: MatrixOption = None,
    model: ModelOption = None,
    select: SelectOption = "",
    cell: CellOption = None,
    fault: FaultOption = None,
    engine: EngineOption = None,
    python: PythonOption = None,
    faults: Annotated[bool, typer.Option("--faults", help="The known defects instead.")] = False,
    models: Annotated[bool, typer.Option("--models", help="The models instead.")] = False,
    buildkite: Annotated[bool, typer.Option("--buildkite", help="Buildkite steps.")] = False,
    github_matrix: Annotated[bool, typer.Option("--github-matrix", help="GitHub matrix.")] = False,
    shards: Annotated[int, typer.Option(min=1, help="CI jobs to make.")] = 2,
    timeout: Annotated[int, typer.Option(min=1, help="Minutes for a CI job.")] = 20,
    setup: Annotated[str, typer.Option(help="Command that a CI job runs first.")] = "",
    json_: JsonOption = False,
) -> int:
    """List the cells that `harness run` would run; nothing is launched."""
    if faults:
        return _print_faults(json_=json_)
    if models:
        return _print_models(json_=json_)
    if buildkite and github_matrix:
        raise UsageError("--buildkite and --github-matrix exclude each other; give one")
    chosen = open_matrix(matrix, engine=engine, pythons=python or ())
    plan = plan_matrix(
        chosen,
        models=model or (),
        faults=fault or (),
        select=select_cells(select, cell or ()),
    )
    if buildkite or github_matrix:
        engines = _engine_words(engine, python)
        forwarded = engines + _forwarded(matrix, model, select, cell, fault)
        command = partial(rerun, matrix=matrix, names_engine=bool(engines))
        _print_jobs(plan, command, forwarded, shards, timeout, setup, buildkite=buildkite)
        return 0
    _print_cells(plan, list(known_bad_cases(plan, chosen)), json_=json_)
    return 0


def _print_cells(plan: Plan, bad: list[Case], *, json_: bool) -> None:
    """The cells, and behind them the known-bad ones, marked as such."""
    cases = list(target_cases(plan))
    if json_:
        rows = [{"cell": c.anchor, "role": c.role, "axes": dict(c.axes)} for c in (*cases, *bad)]
        for row, case in zip(rows[len(cases) :], bad, strict=True):
            row["known_bad"] = list(case.must_fail)
        print_json(rows)
        return
    for case in cases:
        out.print(case.anchor, markup=False)
    for case in bad:
        judges = ", ".join(case.must_fail)
        out.print(f"{case.anchor}  (known bad: must FAIL by {judges})", markup=False)
    also = f" and {count(len(bad), 'known-bad cell')}" if bad else ""
    out.print(f"{count(len(cases), 'cell')}{also}, {count(len(plan.runs), 'run')}", style="dim")


def _print_faults(*, json_: bool) -> int:
    """Names and summaries of the catalogue; no engine is loaded."""
    from harness.faults import FAULTS

    known = [FAULTS.get(name) for name in FAULTS]
    known = [fault for fault in known if fault.kind != "test"]
    if json_:
        fields = ("name", "kind", "summary", "seen_in", "killed_by", "blind", "needs", "workload")
        print_json([{name: getattr(fault, name) for name in fields} for fault in known])
        return 0
    for fault in known:
        kind = "" if fault.kind == "mutant" else f" ({fault.kind})"
        needs = f" [not yet runnable: needs a {fault.needs}]" if fault.needs else ""
        seen = f" {', '.join(fault.seen_in)}" if fault.seen_in else ""
        out.print(f"{fault.name}{kind}: {fault.summary}{seen}{needs}", markup=False)
    return 0


def _forwarded(
    matrix: Path | None,
    model: list[str] | None,
    select: str,
    cell: list[str] | None,
    fault: list[str] | None,
) -> list[str]:
    """The options that choose cells, to be repeated in each CI job's command."""
    words = ["--matrix", str(matrix)] if matrix else []
    words += [w for name in model or () for w in ("--model", name)]
    words += ["-k", select] if select else []
    words += [w for name in cell or () for w in ("--cell", name)]
    return words + [w for name in fault or () for w in ("--fault", name)]


def _engine_words(engine: str | None, python: list[str] | None) -> list[str]:
    words = ["--engine", engine] if engine else []
    return words + [w for text in python or () for w in ("--python", text)]


def _print_jobs(
    plan: Plan,
    command: Callable[[Case], str],
    forwarded: list[str],
    shards: int,
    timeout: int,
    setup: str,
    *,
    buildkite: bool,
) -> None:
    from harness.report import Cell, buildkite_steps
    from harness.report import github_matrix as make_github_matrix

    def cell_of(case: Case) -> Cell:
        return Cell(anchor=case.anchor, axes=case.axes, command=command(case))

    cells = [cell_of(c) for c in target_cases(plan)]
    make = buildkite_steps if buildkite else make_github_matrix
    jobs = make(cells, shards=shards, timeout_minutes=timeout, args=forwarded)
    for job in jobs["steps" if buildkite else "include"] if setup else ():
        job["command"] = f"{setup} && {job['command']}"
    # GitHub reads the matrix from one line of $GITHUB_OUTPUT; Buildkite reads a document.
    sys.stdout.write(json.dumps(jobs, indent=2 if buildkite else None) + "\n")


def _print_models(*, json_: bool) -> int:
    entries = list_models()
    if json_:
        print_json(list(entries))
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("model", "architecture", "layers", "source", "dtype", "what it is"):
        table.add_column(name)
    for e in entries:
        table.add_row(e.name, e.architecture, str(e.layers), e.source, e.dtype, e.description)
    out.print(table)
    return 0
