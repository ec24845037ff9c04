"""`harness report`: the HTML page of a recorded session."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.core.runfiles import write_text_atomic

from .console import JsonOption, out, print_json

FORMATS = ("html", "junit", "markdown")


def report(
    run: Annotated[
        Path, typer.Argument(metavar="[RUN]", help="Session folder, or reports/ for its latest.")
    ] = Path("reports"),
    output: Annotated[Path | None, typer.Option("-o", help="File to write.")] = None,
    format_: Annotated[str, typer.Option("--format", help="html, junit or markdown.")] = "html",
    merge: Annotated[
        bool, typer.Option("--merge", help="RUN holds shards of one matrix: merge them first.")
    ] = False,
    json_: JsonOption = False,
) -> int:
    """Render a recorded session; with --merge, exit as the merged session does."""
    from harness.core import UsageError
    from harness.judge import conclude
    from harness.record import find_shortfall, load_session, merge_sessions
    from harness.report import render_html, render_junit, render_markdown, view_coverage

    renderers = {"html": render_html, "junit": render_junit, "markdown": render_markdown}
    if format_ not in renderers:
        raise UsageError(f"--format {format_!r} is not known; known: {', '.join(FORMATS)}")
    if merge:
        merged = run / "merged"
        folders = sorted(p.parent for p in run.rglob("manifest.json"))
        shards = [folder for folder in folders if folder != merged]
        session = merge_sessions(shards, merged, conclude=conclude)
    else:
        session = load_session(run)
    outcome = session.outcome or conclude(session.results)
    shortfall = find_shortfall(session)
    is_told = session.manifest.get("is_cut_short") or session.manifest.get("gaps")
    if shortfall and not (session.outcome and is_told):
        outcome = outcome.incomplete(f"{shortfall[0].upper()}{shortfall[1:]}.")
    text = renderers[format_](session.results, session.runs, outcome, session.manifest)
    suffix = {"html": "report.html", "junit": "junit.xml", "markdown": "report.md"}[format_]
    path = output or session.folder / suffix
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, text)
    if json_:
        coverage = view_coverage(session.results, session.runs)
        facts = {"session": str(session.folder), "report": str(path), "outcome": outcome}
        print_json({**facts, "coverage": coverage})
    else:
        for problem in session.problems:
            out.print(f"note: {problem}", markup=False)
        out.print(outcome.sentence, markup=False)
        out.print(f"report  {path}", markup=False)
    return outcome.exit_code if merge else 0
