"""A step summary in Markdown: the sentence, the counts, and what did not pass, within limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.core import CaseResult, Json, Outcome, Run, Verdict

from .releases import lay_out, short_label
from .view import build_view
from .words import MARKS, MEANINGS, count

MAX_ROWS = 50
"""Cells listed; a step summary has a size limit, and nobody reads more."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!])")


def render_markdown(
    results: Sequence[CaseResult],
    runs: Mapping[str, Run],
    outcome: Outcome,
    manifest: Mapping[str, Json],
) -> str:
    """Render a summary fit for a GitHub step summary or a Buildkite annotation."""
    view = build_view(results, runs, outcome, manifest)
    lines = [f"## {escape_markdown(view.sentence)}", ""]
    lines += [" · ".join(f"{k} {escape_markdown(v)}" for k, v in view.facts), ""]
    lines += ["| | verdict | cells | |", "|---|---|--:|---|"]
    lines += [
        f"| {p.mark} | {p.verdict} | {p.num_cells} | {MEANINGS[p.verdict]} |" for p in view.pills
    ]
    lines += [""]
    lines += [f"- {'✓' if c.is_ok else '✕'} {escape_markdown(c.text)}" for c in view.controls]
    lines += _releases(results) if view.releases else []
    by_anchor = {cell.anchor: cell for cell in view.cells}
    bad = [r for r in results if r.counts and r.verdict is not Verdict.PASS]
    if bad:
        lines += ["", "| | cell | why |", "|---|---|---|"]
        for result in bad[:MAX_ROWS]:
            cell = by_anchor[result.case.anchor]
            anchor, title = code_span(cell.anchor), escape_markdown(cell.title)
            mark = f"{MARKS[cell.verdict]} {cell.verdict}"
            mark += ", emulation" if cell.emulation else ""
            lines.append(f"| {mark} | {anchor} | {title} |")
        if len(bad) > MAX_ROWS:
            lines += ["", f"and {count(len(bad) - MAX_ROWS, 'more cell')}; see the report."]
        lines += ["", *_rerun(bad[0])]
    missed = [r for r in view.paired if r.is_missed and not r.is_control]
    if missed:
        cells = sum(r.num_cells for r in missed)
        lines += ["", f"A plain paired test would have passed findings in {count(cells, 'cell')}."]
    return "\n".join(lines) + "\n"


def _releases(results: Sequence[CaseResult]) -> list[str]:
    """A table for each engine: releases across, settings down, since when each is right."""
    lines: list[str] = []
    for table in lay_out([(result, result) for result in results]):
        head = f"### {escape_markdown(table.engine)}"
        head += f" (emulation: {table.emulation})" if table.emulation else ""
        columns = [escape_markdown(short_label(release)) for release in table.releases]
        lines += ["", head, "", f"| offload | runner | {' | '.join(columns)} | since |"]
        lines += ["|" + "---|" * (len(columns) + 3)]
        for row in table.rows[:MAX_ROWS]:
            marks = (" ".join(MARKS[r.verdict.value] for r in cells) for cells in row.cells)
            cells = (row.offload, row.runner, *marks, row.since)
            lines.append("| " + " | ".join(map(escape_markdown, cells)) + " |")
        if len(table.rows) > MAX_ROWS:
            lines += ["", f"and {count(len(table.rows) - MAX_ROWS, 'more row')}; see the report."]
    return lines


def escape_markdown(text: str) -> str:
    """Text that shows as it is, on one line, inside a table too."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def code_span(text: str) -> str:
    """A code span that neither a backtick nor a table bar in `text` can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}".replace("|", "\\|")


def _rerun(result: CaseResult) -> list[str]:
    """The first bad cell's command as an indented block, which nothing in it can end."""
    if not result.command:
        return []
    command = " ".join(result.command.split())
    return ["Run the first one again:", "", f"    {command}"]
