"""Writes a session's pages: the HTML report and the JUnit file, beside its record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core import CaseResult, Outcome, Run, UsageError
from harness.core.codec import Json
from harness.core.runfiles import write_text_atomic
from harness.pipeline import Session
from harness.report import render_html, render_junit


def write_pages(
    session: Session,
    outcome: Outcome,
    manifest: Mapping[str, Json],
    *,
    extra_report: Path | None = None,
    junit: Path | None = None,
) -> dict[str, str]:
    """Write report.html and junit.xml into the session's folder, and where else they are asked.

    Returns:
        kind -> path, for the last lines of the terminal.
    """
    results: Sequence[CaseResult] = session.results
    runs: Mapping[str, Run] = session.runs
    full = {**manifest, "session_id": session.session_id}
    html = render_html(results, runs, outcome, full)
    xml = render_junit(results, runs, outcome, full)
    pages = {"report": session.folder / "report.html", "junit": session.folder / "junit.xml"}
    for path, text in (
        (pages["report"], html),
        (pages["junit"], xml),
        (extra_report, html),
        (junit, xml),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(path, text)
    shown = {"report": extra_report or pages["report"], "junit": junit or pages["junit"]}
    return {kind: str(path) for kind, path in shown.items()}


def check_writable(path: Path | None) -> None:
    """Refuse, before anything is launched, a page that could not be written after it.

    Raises:
        UsageError: `path` is a folder, or its folder cannot be made or written.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent} cannot be made: {error.strerror}; name another") from None
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path.parent} cannot be written; name a file elsewhere")
