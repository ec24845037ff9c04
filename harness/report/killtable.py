"""The kill table of a session of `harness faults`, read from its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core import Json, Outcome, decode

from .words import PROOFS

_SECTIONS = (
    ("mutant", "Known defects: each must be caught", "caught", "survived"),
    (
        "equivalent",
        "Equivalent mutants: each must be left in peace",
        "left in peace",
        "not as it must be",
    ),
    ("test", "Faulty tests: each must be refused", "refused", "let through"),
)
_PLAIN = {True: "passes", False: "fails", None: "no output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRowView:
    """One trial."""

    where: str
    marks: tuple[tuple[str, str, str], ...]
    """For each judge: mark, word, what it said."""
    plain: str
    is_missed: bool
    """A plain paired test passes although a judge objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillLineView:
    """One fault with its trials."""

    name: str
    summary: str
    seen_in: str
    blind: str
    is_right: bool
    word: str
    why: str
    rows: tuple[KillRowView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSection:
    """All lines of one kind."""

    title: str
    lines: tuple[KillLineView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTableView:
    """The whole table."""

    judges: tuple[str, ...]
    sections: tuple[KillSection, ...]
    waiting: tuple[tuple[str, str, str], ...]
    """Name, what it needs, summary."""


def view_kill_table(manifest: Mapping[str, Json]) -> KillTableView | None:
    """The table's view; None for a session that has none."""
    table = manifest.get("kill_table")
    if not table:
        return None
    lines = table["lines"]
    spoken = {j for line in lines for r in line["rows"] for j in (*r["objected"], *r["silent"])}
    judges = tuple(sorted(spoken - {"case"}, key=_order))
    sections = []
    for kind, title, good, bad in _SECTIONS:
        mine = [line for line in lines if line["kind"] == kind and not line["needs"]]
        if mine:
            views = (_line(line, good if line["is_right"] else bad, judges) for line in mine)
            sections.append(KillSection(title=title, lines=tuple(views)))
    waiting = tuple((x["name"], x["needs"], x["summary"]) for x in lines if x["needs"])
    return KillTableView(judges=judges, sections=tuple(sections), waiting=waiting)


def kill_outcome(manifest: Mapping[str, Json]) -> Outcome | None:
    """What a session of faults amounts to: not its cases, which are meant to fail."""
    table = manifest.get("kill_table")
    return decode(Outcome, table["outcome"], "kill_table.outcome") if table else None


def _order(judge: str) -> tuple[int, str]:
    return (PROOFS.index(judge) if judge in PROOFS else len(PROOFS), judge)


def _line(line: Json, word: str, judges: Sequence[str]) -> KillLineView:
    groups: dict[str, list[Json]] = {}
    for row in line["rows"]:
        said = [row["mode"], row["schedule"], sorted(row["objected"]), row["silent"]]
        groups.setdefault(json.dumps([*said, row["plain_passes"]]), []).append(row)
    return KillLineView(
        name=line["name"],
        summary=line["summary"],
        seen_in=", ".join(line["seen_in"]),
        blind=line["blind"],
        is_right=line["is_right"],
        word=word,
        why=line["why"],
        rows=tuple(_row(members, judges, line["kind"]) for members in groups.values()),
    )


def _row(members: Sequence[Json], judges: Sequence[str], kind: str) -> KillRowView:
    """One row for all runners under which the same was said."""
    row = members[0]
    schedule = "" if row["schedule"] == "in_order" else row["schedule"]
    runners = " ".join(member["runner"] for member in members)
    return KillRowView(
        where=" ".join(filter(None, (runners, row["mode"], schedule))),
        marks=tuple(_mark(row, judge) for judge in judges),
        plain=_PLAIN[row["plain_passes"]],
        is_missed=bool(row["plain_passes"] and row["objected"] and kind != "equivalent"),
    )


def _mark(row: Json, judge: str) -> tuple[str, str, str]:
    if judge in row["objected"]:
        return ("●", "objects", row["objected"][judge])
    return ("·", "silent", "says PASS") if judge in row["silent"] else ("", "no word", "")
