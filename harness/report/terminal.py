"""The same facts for a terminal: one line per case, a summary, and one cell explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.core import CaseResult, Finding, Outcome, Run, Verdict

from .cell import CellView, lead_sentence, view_cell
from .coverage import is_telling, view_coverage
from .effect import EffectRow
from .history import histories
from .memory_figures import FigureRow
from .order import has_releases
from .releases import lay_out, short_label
from .tokens import TokensView
from .words import MARKS, MEANINGS, count, describe_downgrade, format_bytes, is_emulation

MAX_ROWS = 40
"""Settings listed for each engine."""

STYLES: dict[str, str] = {
    "PASS": "green",
    "FAIL": "bold red",
    "VACUOUS": "yellow",
    "UNSUPPORTED": "dim",
    "ERROR": "bold magenta",
}
"""Rich style of each verdict; the mark and the word say the same without colour."""


def case_line(result: CaseResult) -> Text:
    """One line: mark, verdict, anchor, and the shortest evidence that supports the verdict.

    Print it with `no_wrap=True, overflow="ellipsis"`: `Console.print` drops the text's own.
    """
    if result.case.role == "control" and result.behaved:
        text = Text(f"{MARKS['PASS']} {'CAUGHT':12s} ", style=STYLES["PASS"])
    else:
        text = _verdict(result.verdict.value, width=12)
    text.append(_one_line(result.case.anchor))
    if is_emulation(result.case.target.engine):
        text.append(" (emulation)", style="yellow")
    if other := result.case.workload.model.stand_in_for:
        text.append(f" (stand-in for {_one_line(other)})", style="yellow")
    if not result.counts and result.behaved:
        role = "null run exact" if result.case.role == "null" else "planted fault caught"
        text.append(f"  {role}", style="green")
    if result.is_waived and result.case.waive:
        text.append(f"  waived: {_one_line(result.case.waive.reason)}", style="yellow")
    if evidence := _short_evidence(result):
        text.append(f"  {evidence}", style="dim")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def summary(
    outcome: Outcome, results: Sequence[CaseResult], runs: Mapping[str, Run] | None = None
) -> RenderableType:
    """The sentence, a table of counts by runner, the cells that did not pass, the controls.

    Args:
        outcome: the session's.
        results: every case, controls included.
        runs: run id -> run, from which a table of the runners that really ran is made.
    """
    color = STYLES["PASS"] if outcome.passed else STYLES["FAIL"]
    parts: list[RenderableType] = [Text(outcome.sentence, style=color)]
    if downgrade := describe_downgrade(outcome):
        parts.append(Text(downgrade, style=STYLES["FAIL"]))
    parts.append(Text())
    parts.append(_counts_table(outcome, results))
    parts += _releases(results) if has_releases(results) else []
    parts += _coverage(results, runs) if runs is not None else []
    bad = [r for r in results if r.counts and r.verdict is not Verdict.PASS]
    bad.sort(key=lambda result: result.is_waived)
    for shown in bad[:12]:
        parts.append(Padding(case_line(shown), (0, 0, 0, 2)))
    if len(bad) > 12:
        parts.append(Text(f"  and {count(len(bad) - 12, 'more cell')}", style="dim"))
    for result in results:
        if not result.counts and not result.behaved:
            parts.append(Text(f"  control misbehaved: {result.case.anchor}", style=STYLES["FAIL"]))
    controls = sum(1 for r in results if not r.counts and r.behaved)
    if controls:
        parts.append(Text(f"  {count(controls, 'control')} behaved", style="dim"))
    return Group(*parts)


def explain(
    result: CaseResult, runs: Mapping[str, Run], *, results: Sequence[CaseResult] = ()
) -> RenderableType:
    """One cell in full: the sentence, the proofs in order, then the evidence.

    Args:
        result: the case.
        runs: run id -> run; may lack the case's own, whose evidence is then left out.
        results: every case of the session, for the cell's verdicts over the releases.
    """
    history = histories(results).get(result.case.case_id, "")
    cell = view_cell(result, runs, result.case.anchor, history=history)
    head = _verdict(cell.verdict)
    head.append(cell.anchor)
    if cell.emulation:
        head.append(f" emulation: {cell.emulation}", style="yellow")
    parts: list[RenderableType] = [head, Text(cell.title, style="bold")]
    parts += [Text(cell.history)] if cell.history else []
    parts += [Text(note, style="yellow") for note in cell.notes]
    facts = [("model", cell.model), ("compared with", cell.baseline_id), *cell.facts]
    parts += [Text("; ".join(f"{k} {v}" for k, v in facts), style="dim"), Text()]
    parts += [_proofs(cell)] if cell.proofs else []
    for broken in cell.breakdowns:
        parts += [Text(f"\n{broken.side} ended as {broken.status}: {broken.error}", style="bold")]
        parts += [Padding(Text(broken.log, style="dim"), (0, 0, 0, 2))] if broken.log else []
    parts += _tokens(cell.tokens) if cell.tokens is not None else []
    if cell.effect:
        parts += [Text("\nAsked for, and found on the live objects"), _effect(cell.effect)]
    for drawn in (cell.placement, cell.timeline, cell.memory):
        parts += [Text(f"\n{drawn.sentence}")] if drawn is not None else []
    parts += [_figures(cell.memory.figures)] if cell.memory is not None else []
    parts += [Text(f"\n{side} warned: {text}", style="yellow") for side, text in cell.warnings]
    parts += [Text(f"\n{side} not observed: {text}") for side, text in cell.not_observed]
    parts += [Text("\nRun it again"), Text(f"  {cell.command}")] if cell.command else []
    return Group(*parts)


def _releases(results: Sequence[CaseResult]) -> list[RenderableType]:
    """A table for each engine: releases across, settings down, since when each is right."""
    parts: list[RenderableType] = []
    for engine in lay_out([(result, result) for result in results]):
        head = Text(f"\n{engine.engine}", style="bold")
        if engine.emulation:
            head.append(f"  emulation: {engine.emulation}", style="yellow")
        table = Table(box=None, pad_edge=False, padding=(0, 2))
        for heading in ("offload", "", *map(short_label, engine.releases), "since"):
            table.add_column(heading)
        for row in engine.rows[:MAX_ROWS]:
            marks = [_marks(cells) for cells in row.cells]
            since = Text(row.since, style=STYLES[row.tone])
            table.add_row(Text(row.offload), Text(row.runner), *marks, since)
        parts += [head, table]
        if len(engine.rows) > MAX_ROWS:
            more = count(len(engine.rows) - MAX_ROWS, "more row")
            parts.append(Text(f"  and {more}; see the report", style="dim"))
    return parts


def _coverage(results: Sequence[CaseResult], runs: Mapping[str, Run]) -> list[RenderableType]:
    """Which runners really ran, for each workload and mode, where the counts do not say it."""
    rows = view_coverage(results, runs)
    if not is_telling(rows):
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("really ran", "", "V1", "V2"):
        table.add_column(heading)
    for row in rows:
        style = STYLES["ERROR"] if row.never_ran else ""
        table.add_row(Text(row.workload), Text(row.mode), *(Text(w, style) for w in row.words))
    return [Text(), table]


def _marks(results: Sequence[CaseResult]) -> Text:
    text = Text()
    for result in results:
        verdict = result.verdict.value
        text.append(f"{MARKS[verdict]} {verdict} ", style=STYLES[verdict])
    return text


def _verdict(verdict: str, width: int = 0) -> Text:
    return Text(f"{MARKS[verdict]} {verdict:{width}s} ", style=STYLES[verdict])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _short_evidence(result: CaseResult) -> str:
    if result.verdict is not Verdict.PASS:
        return _one_line(lead_sentence(result))
    ranks = (result.case.expected, *result.case.expected_ranks)
    expected = sum(each.offloaded_bytes for each in ranks)
    parts = [f"{format_bytes(expected)} offloaded"] if expected else []
    tokens = next((f for f in result.findings if f.judge == "tokens"), None)
    if isinstance(tokens, Finding) and tokens.verdict is Verdict.PASS:
        parts.append("same output")
    return ", ".join(parts)


def _counts_table(outcome: Outcome, results: Sequence[CaseResult]) -> Table:
    """Verdict counts, a row for each model and runner."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("model")
    table.add_column("runner")
    used = [v for v in MARKS if outcome.counts.get(v, 0) or v in ("PASS", "FAIL")]
    for verdict in used:
        heading = Text(f"{MARKS[verdict]} {verdict}", style=STYLES[verdict])
        table.add_column(heading, justify="right")
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for result in results:
        if result.counts:
            setting = result.case.target
            key = (result.case.workload.model.display_name, setting.runner or "auto")
            row = rows.setdefault(key, {})
            row[result.verdict.value] = row.get(result.verdict.value, 0) + 1
    for (model, runner), counts in sorted(rows.items()):
        cells = [str(counts[v]) if counts.get(v) else "·" for v in used]
        table.add_row(Text(model), Text(runner), *cells)
    if len(rows) != 1:
        totals = [str(outcome.counts.get(v, 0)) for v in used]
        table.add_row(Text("all", style="bold"), "", *totals)
    return table


def _proofs(cell: CellView) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for proof in cell.proofs:
        style = STYLES.get(proof.verdict, "dim")
        meaning = MEANINGS.get(proof.verdict, "")
        text = proof.summary if proof.summary else meaning
        table.add_row(Text(f"{proof.mark} {proof.heading}", style=style), Text(text))
    return table


def _tokens(view: TokensView) -> list[RenderableType]:
    """The headline and, where answers differ, the ids around the first difference."""
    parts: list[RenderableType] = [Text(f"\nOutput: {view.headline}")]
    strip = view.strips[0] if view.strips else None
    if strip is None or strip.first_idx is None:
        return parts
    rows = (Text("  baseline "), Text("  target   "))
    for number, token in enumerate(strip.tokens[:14]):
        first = strip.start_idx + number == strip.first_idx
        style = "reverse bold red" if first else ("red" if token.differs else "")
        width = max(len(token.baseline), len(token.target))
        for row, value in zip(rows, (token.baseline, token.target), strict=True):
            row.append(" ")
            row.append(value.rjust(width), style=style)
    parts += list(rows)
    if strip.baseline_text or strip.target_text:
        for side, rest in (("baseline", strip.baseline_text), ("target", strip.target_text)):
            parts.append(Text(f"  {side:9s} …{_one_line(rest)[:100]}"))
    return parts


def _figures(rows: Sequence[FigureRow]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("memory", "baseline", "target"):
        table.add_column(heading, justify="left" if heading == "memory" else "right")
    for row in rows:
        table.add_row(Text(row.name), Text(row.baseline), Text(row.target))
    return table


def _effect(rows: Sequence[EffectRow]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("", "asked", "baseline", "target", ""):
        table.add_column(heading)
    for row in rows:
        mark = {True: "✓", False: "✕", None: ""}[row.is_ok]
        style = STYLES["FAIL"] if row.is_ok is False else ""
        values = (row.name, row.asked, row.baseline, row.target, mark)
        table.add_row(*(Text(value, style=style) for value in values))
    return table
