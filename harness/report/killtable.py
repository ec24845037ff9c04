"""The kill table of a session of `harness faults`, read from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.core import Json, Outcome, decode

_SECTIONS = (
    ("mutant", "Known defects", "caught by", "killed", "survived"),
    ("equivalent", "Equivalent mutants", "objected", "silent", "not as it must be"),
    ("test", "Faulty tests", "refused by", "refused", "let through"),
)
_PLAIN = {True: "passes", False: "fails", None: "no output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRowView:
    """One trial."""

    where: str
    objected: str
    silent: str
    plain: str
    is_missed: bool
    """A plain paired test passes although a judge objects."""
    anchor: str


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
    heading: str
    lines: tuple[KillLineView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTableView:
    """The whole table."""

    sections: tuple[KillSection, ...]
    waiting: tuple[tuple[str, str, str], ...]
    """Name, what it needs, summary."""


def view_kill_table(manifest: Mapping[str, Json]) -> KillTableView | None:
    """The table's view; None for a session that has none."""
    table = manifest.get("kill_table")
    if not table:
        return None
    lines = table["lines"]
    sections = []
    for kind, title, heading, good, bad in _SECTIONS:
        mine = [line for line in lines if line["kind"] == kind and not line["needs"]]
        if mine:
            views = tuple(_line(line, good if line["is_right"] else bad) for line in mine)
            sections.append(KillSection(title=title, heading=heading, lines=views))
    waiting = tuple((x["name"], x["needs"], x["summary"]) for x in lines if x["needs"])
    return KillTableView(sections=tuple(sections), waiting=waiting)


def kill_outcome(manifest: Mapping[str, Json]) -> Outcome | None:
    """What a session of faults amounts to: not its cases, which are meant to fail."""
    table = manifest.get("kill_table")
    return decode(Outcome, table["outcome"], "kill_table.outcome") if table else None


def _line(line: Json, word: str) -> KillLineView:
    return KillLineView(
        name=line["name"],
        summary=line["summary"],
        seen_in=", ".join(line["seen_in"]),
        blind=line["blind"],
        is_right=line["is_right"],
        word=word,
        why=line["why"],
        rows=tuple(_row(row) for row in line["rows"]),
    )


def _row(row: Json) -> KillRowView:
    schedule = "" if row["schedule"] == "in_order" else row["schedule"]
    return KillRowView(
        where=" ".join(filter(None, (row["runner"], row["mode"], schedule))),
        objected=", ".join(row["objected"]) or "nobody",
        silent=", ".join(row["silent"]),
        plain=_PLAIN[row["plain_passes"]],
        is_missed=bool(row["plain_passes"] and row["objected"]),
        anchor=row["anchor"],
    )
