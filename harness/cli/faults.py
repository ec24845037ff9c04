"""`harness faults`: every known defect against the harness, and which judge caught it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.core.codec import encode
from harness.core.runfiles import write_json_atomic, write_text_atomic
from harness.judge import JUDGES
from harness.pipeline import Options, Session
from harness.report import render_html
from harness.triage.killtable import KillTable, choose, make_kill_table
from harness.triage.rows import FaultLine, KillRow

from .console import JsonOption, out, print_json
from .live import Watch

OBJECTS, SILENT = "●", "·"
TABLE_FILE = "kill_table.json"
PLAIN = {True: "passes", False: "fails", None: "no output"}


def faults(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: the whole catalogue.")
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option("--judge", metavar="NAME", help="Ask only this judge; may repeat."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", help="Folder that receives the session.")] = Path(
        "reports"
    ),
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=0, help="Launches at once; 0: cores.")
    ] = 0,
    json_: JsonOption = False,
) -> int:
    """Plant every known defect, and print which judge caught it.

    Exits with 0 when every defect that can run is caught on every runner and mode where it
    applies, every equivalent mutant is left in peace and every faulty test is refused.
    """
    choose(names or (), judge or ())
    options = Options(jobs=jobs)
    manifest = {
        "door": "cli",
        "argv": ["harness", *sys.argv[1:]],
        "title": "Known defects",
        "jobs": options.num_jobs,
    }
    with (
        Watch(quiet=True) as watch,
        Session(
            output,
            manifest=manifest,
            options=options,
            watch=watch,
            command_for=lambda case: f"harness faults {' '.join(case.target.faults)}".strip(),
        ) as session,
    ):
        table = make_kill_table(session, names or (), judge or ())
    record = encode(table)
    write_json_atomic(session.folder / TABLE_FILE, record, indent=1)
    page = session.folder / "report.html"
    about = {**session.recorder.manifest, "kill_table": record}
    write_text_atomic(page, render_html(session.results, session.runs, table.outcome, about))
    if json_:
        print_json({"session": str(session.folder), **record, "report": str(page)})
        return table.exit_code
    print_kill_table(table)
    out.print(f"record  {session.folder}", markup=False)
    out.print(f"report  {page}", markup=False)
    return table.exit_code


def print_kill_table(table: KillTable) -> None:
    """The table as text: defects, equivalents, faulty tests, and what cannot run yet."""
    judges = [name for name in JUDGES if any(name in _words(x) for x in table.lines)]
    for kind, title in (
        ("mutant", "defects: each must be caught"),
        ("equivalent", "equivalent mutants: each must be left in peace"),
        ("test", "faulty tests: each must be refused"),
    ):
        if lines := table.of(kind):
            heading = "".join(f"{name:<10}" for name in judges)
            out.print(f"\n{title:<61}{heading}plain test", style="bold", markup=False)
            for line in lines:
                _print_line(line, judges)
    if waiting := [line for line in table.lines if line.needs]:
        out.print("\nnot yet runnable, so neither caught nor missed", style="bold", markup=False)
        for line in waiting:
            seen = f" ({', '.join(line.seen_in)})" if line.seen_in else ""
            out.print(f"  {line.name}: needs a {line.needs}{seen}", markup=False)
    out.print(f"\n{OBJECTS} objects   {SILENT} says PASS   blank: has no word", markup=False)
    out.print(f"{table.sentence}\n", markup=False)


def _words(line: FaultLine) -> set[str]:
    return {judge for row in line.rows for judge in (*row.objected, *row.silent)}


def _print_line(line: FaultLine, judges: Sequence[str]) -> None:
    name = f"{'✓' if line.is_right else '✕'} {line.name}"
    seen = f"refused by: {line.killed_by[0]}" if line.kind == "test" else ", ".join(line.seen_in)
    for where, row in merge_runners(line.rows):
        marks = [OBJECTS if j in row.objected else SILENT * (j in row.silent) for j in judges]
        cells = "".join(f"{mark:<10}" for mark in marks)
        text = f"{name:<33}{where:<28}{cells}{PLAIN[row.plain_passes]:<11}{seen}"
        out.print(text.rstrip(), markup=False)
        name = seen = ""
    if line.why:
        out.print(f"    {line.why}", markup=False)


def merge_runners(rows: Sequence[KillRow]) -> Iterator[tuple[str, KillRow]]:
    """One row for all runners under which the same was said: `v1 v2 prefetch copy_late`."""
    groups: dict[tuple[object, ...], list[KillRow]] = {}
    for row in rows:
        said = (tuple(row.objected), row.silent, row.plain_passes, row.ended)
        groups.setdefault((row.mode, row.schedule, *said), []).append(row)
    for members in groups.values():
        first = members[0]
        schedule = "" if first.schedule == "in_order" else first.schedule
        runners = " ".join(row.runner for row in members)
        yield " ".join(filter(None, (runners, first.mode, schedule))), first
