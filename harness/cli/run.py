"""`harness run`: the matrix, live, into a record and a report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.cells import plan_matrix, target_cases
from harness.core import Case, CaseResult, Outcome, Plan, Setting, UsageError, Verdict
from harness.core.codec import Json, encode
from harness.interpreters import open_matrix
from harness.pipeline import Options, Session
from harness.triage.faultcases import describe_doubt

from .console import (
    INTERRUPTED,
    CellOption,
    EngineOption,
    FaultOption,
    JsonOption,
    MatrixOption,
    ModelOption,
    PythonOption,
    SelectOption,
    ShardOption,
    out,
    parse_shard,
    print_json,
    rerun,
    select_cells,
    show_command,
)
from .live import Watch
from .pages import check_writable, write_pages

JobsOption = Annotated[int, typer.Option("-j", "--jobs", min=0, help="Launches at once; 0: cores.")]


def run(
    matrix: MatrixOption = None,
    model: ModelOption = None,
    select: SelectOption = "",
    cell: CellOption = None,
    shard: ShardOption = "1/1",
    fault: FaultOption = None,
    engine: EngineOption = None,
    python: PythonOption = None,
    output: Annotated[Path, typer.Option("-o", help="Folder that receives the session.")] = Path(
        "reports"
    ),
    jobs: JobsOption = 0,
    cold: Annotated[bool, typer.Option("--cold", help="A new interpreter per launch.")] = False,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds until a launch is a hang.")] = 300,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the report here.")] = None,
    json_: JsonOption = False,
) -> int:
    """Run the offload matrix, judge every cell, and leave a record and an HTML report."""
    chosen = open_matrix(matrix, engine=engine, pythons=python or ())
    plan = plan_matrix(
        chosen,
        models=model or (),
        faults=fault or (),
        select=select_cells(select, cell or ()),
        shard=parse_shard(shard),
    )
    cells = list(target_cases(plan))
    if not cells and not plan.unsupported:
        raise UsageError(nothing_left(select, cell or (), shard))
    for line in describe_doubt(fault or (), plan):
        typer.echo(f"note: {line}", err=True)
    names_engine = bool(engine or python)
    for path in (report, junit):
        check_writable(path)
    options = Options(jobs=jobs, cold=cold, deadline_s=deadline)
    manifest = {
        **describe(plan, chosen.name, str(matrix) if matrix else None, options),
        "shard": shard,
    }
    with (
        Watch(quiet=json_) as watch,
        Session(
            output,
            manifest=manifest,
            options=options,
            watch=watch,
            command_for=lambda case: rerun(case, matrix, names_engine=names_engine),
        ) as session,
    ):
        watch.start(f"{chosen.name} matrix", plan, options.num_jobs)
        outcome, stopped = run_until_stopped(session, plan)
    pages = write_pages(session, outcome, manifest, extra_report=report, junit=junit)
    finish(session, outcome, pages, json_=json_)
    return INTERRUPTED if stopped else outcome.exit_code


def nothing_left(select: str, cells: Sequence[str], shard: str) -> str:
    """Why no cell is left, naming only what was asked."""
    asked = [f"-k {select!r}"] if select else []
    asked += [f"--cell {name!r}" for name in cells]
    asked += [f"--shard {shard}"] if shard != "1/1" else []
    why = f"no cell is left by {' '.join(asked)}" if asked else "the matrix asks for no offload"
    return f"{why}; `harness list` shows the cells"


def run_until_stopped(session: Session, plan: Plan) -> tuple[Outcome, bool]:
    """Run the plan; after Ctrl-C, what was recorded is folded and kept."""
    try:
        return session.run_plan(plan), False
    except KeyboardInterrupt:
        return session.finish(), True


def describe(plan: Plan, name: str, matrix: str | None, options: Options) -> dict[str, Json]:
    """The part of a manifest that the door knows."""
    cases: list[Case] = [*(p.case for p in plan.cases), *(s.case for s in plan.unsupported)]
    models = {c.workload.model.name: c.workload.model for c in cases}
    return {
        "door": "cli",
        "argv": ["harness", *sys.argv[1:]],
        "matrix": name,
        "matrix_file": matrix,
        "models": {m.name: m.display_name for m in models.values()},
        "workload": {
            c.workload.name: f"{len(c.workload.prompt_token_ids)} prompts x "
            f"{c.workload.sampling_params.max_tokens} tokens"
            for c in cases
        },
        "engines": list(dict.fromkeys(c.target.engine for c in cases)),
        "releases": _releases([c.target for c in cases]),
        "dtypes": sorted({m.dtype for m in models.values()}),
        "num_cases": len(plan.cases) + len(plan.unsupported),
        "num_runs": len(plan.runs),
        "jobs": options.num_jobs,
        "num_threads": options.num_threads,
        "cold": options.cold,
    }


def _releases(settings: Sequence[Setting]) -> dict[str, Json]:
    """Label -> interpreter, in the order of the releases; `own` stands for this one."""
    named = {f"{s.engine} {s.release}".strip(): s.python or "own" for s in settings}
    return dict(named)


def finish(
    session: Session,
    outcome: Outcome,
    pages: dict[str, str],
    *,
    json_: bool,
    attributed: Mapping[str, str] | None = None,
) -> None:
    """Print what a session amounts to, and by case id what a difference comes with."""
    from harness.report import summary

    folder, results = session.folder, session.results
    if json_:
        print_json(
            {
                "session": str(folder),
                "outcome": encode(outcome),
                "cases": [brief(r) for r in results],
                **({"attributed": dict(attributed)} if attributed else {}),
                **pages,
            }
        )
        return
    out.print()
    out.print(summary(outcome, results, session.runs))
    for note in (attributed or {}).values():
        out.print(f"Attributed: {note}", markup=False)
    out.print()
    out.print(f"record  {folder}", markup=False)
    for kind, path in pages.items():
        out.print(f"{kind:<7} {path}", markup=False)
    red = [r for r in results if r.counts and r.verdict is not Verdict.PASS]
    bad = min(red, key=lambda result: result.is_waived, default=None)
    if bad is not None:
        out.print(f"look    {show_command(bad.case, folder)}", markup=False)


def brief(result: CaseResult) -> dict[str, Json]:
    """A case in a few keys."""
    return {
        "cell": result.case.anchor,
        "model": result.case.workload.model.display_name,
        "role": result.case.role,
        "verdict": result.verdict.value,
        **({"waived": result.case.waive.reason} if result.is_waived and result.case.waive else {}),
        "axes": dict(result.case.axes),
        "findings": {f.judge: f"{f.verdict.value}: {f.summary}" for f in result.findings},
        "command": result.command,
    }
