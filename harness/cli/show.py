"""`harness show CELL`: one recorded cell in full."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from harness.core import Case, UsageError

from .console import JsonOption, out, print_json


def show(
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    run: Annotated[Path, typer.Option(help="Session folder, or reports/ for its latest.")] = Path(
        "reports"
    ),
    json_: JsonOption = False,
) -> int:
    """Show one cell of a recorded session: verdict, proofs, evidence, and how to rerun it."""
    from harness.record import load_session
    from harness.report import explain

    session = load_session(run)
    anchors = [r.case.anchor for r in session.results]
    exact = [r for r in session.results if cell in names_of(r.case)]
    found = exact or [r for r in session.results if cell in r.case.anchor]
    if len(found) != 1:
        near = difflib.get_close_matches(cell, anchors, n=3, cutoff=0.3)
        listed = [r.case.anchor for r in found][:3] or near
        what = f"matches {len(found)} cells" if found else "matches no cell"
        raise UsageError(
            f"{cell!r} {what} of {session.folder}; "
            + (f"for example: {', '.join(listed)}" if listed else "`harness list` shows the cells")
        )
    if json_:
        print_json(found[0])
    else:
        out.print(explain(found[0], session.runs))
    return 0


def names_of(case: Case) -> tuple[str, ...]:
    """What names exactly this cell: its id with and without the model, and the whole case id."""
    return (case.anchor, case.anchor.split("/", 1)[-1], case.case_id)
