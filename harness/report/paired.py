"""Would a plain paired test have seen it? It compares the first tokens of one prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core import CaseResult, Run, Verdict

from .cell import CellView
from .tokens import plain_pair_is_equal
from .words import MARKS, capitalised


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """Cases of one verdict and one deciding judge."""

    verdict: str
    mark: str
    judge: str
    summary: str
    num_cells: int
    word: str
    """What a plain paired test says of them."""
    is_missed: bool
    """True when a plain paired test would have passed at least one."""
    cells: tuple[CellView, ...]
    is_control: bool


def view_paired(
    pairs: Sequence[tuple[CaseResult, CellView]], runs: Mapping[str, Run]
) -> tuple[PairedRow, ...]:
    """One row for each shared cause that is not PASS, controls apart."""
    groups: dict[tuple[str, str, str, bool], list[tuple[CaseResult, CellView]]] = {}
    for result, cell in pairs:
        if result.verdict is not Verdict.PASS:
            key = (result.verdict.value, _judge(result), _cause(result), result.counts)
            groups.setdefault(key, []).append((result, cell))
    return tuple(_row(members, runs) for members in groups.values())


def _row(members: Sequence[tuple[CaseResult, CellView]], runs: Mapping[str, Run]) -> PairedRow:
    result, cell = members[0]
    verdict, cause = result.verdict.value, _cause(result)
    words = [
        plain_pair_is_equal(runs.get(r.baseline_run_id or ""), runs.get(r.target_run_id or ""))
        for r, _ in members
    ]
    return PairedRow(
        verdict=verdict,
        mark=MARKS[verdict],
        judge=_judge(result),
        summary=capitalised(cause) if cause and len(members) > 1 else cell.title,
        num_cells=len(members),
        word=_word(words),
        is_missed=True in words,
        cells=tuple(c for _, c in members),
        is_control=not result.counts,
    )


def _judge(result: CaseResult) -> str:
    return result.lead.judge if result.lead is not None else "no judge"


def _cause(result: CaseResult) -> str:
    """The part of the deciding finding that many cells can share, where the judge named one."""
    evidence = result.lead.evidence if result.lead is not None else {}
    return str(evidence.get("cause") or "")


def _word(words: Sequence[bool | None]) -> str:
    """`passes`, `fails`, `passes 3 of 8`, or that there was nothing to compare."""
    ran = [w for w in words if w is not None]
    if not ran:
        return "no output to compare"
    passes = sum(ran)
    if passes in (0, len(ran)):
        return "passes" if passes else "fails"
    return f"passes {passes} of {len(ran)}"
