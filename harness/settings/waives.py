"""The `waives:` of a matrix file: cells that are red for a known reason, each with an end."""

from __future__ import annotations

import datetime as dt

from harness.core import UsageError, Waive
from harness.core.case import JUDGE_NAMES, WAIVABLE

from .nodes import Item
from .select import parse_selection

_KEYS = ("cell", "verdict", "reason", "judges", "link", "expires")
_NEEDED = ("cell", "verdict", "reason", "expires")


def read_waives(item: Item) -> tuple[Waive, ...]:
    """Read the list.

    Raises:
        MatrixError: an entry lacks a key, or one cannot be read.
    """
    return tuple(item.sequence(_read_waive))


def _read_waive(item: Item) -> Waive:
    keys = item.mapping(_KEYS)
    for name in _NEEDED:
        if name not in keys:
            raise item.error(f"a waive needs {name}; it has {', '.join(keys) or 'nothing'}")
    cell = keys["cell"].text()
    try:
        parse_selection(cell)
    except UsageError as error:
        raise keys["cell"].error(str(error)) from None
    return Waive(
        cell=cell,
        verdict=keys["verdict"].text(WAIVABLE),
        reason=keys["reason"].text(),
        judges=tuple(keys["judges"].sequence(_read_judge)) if "judges" in keys else (),
        link=keys["link"].text() if "link" in keys else "",
        expires=_read_date(keys["expires"]),
    )


def _read_judge(item: Item) -> str:
    return item.text(JUDGE_NAMES)


def _read_date(item: Item) -> str:
    found = item.value
    try:
        return dt.date.fromisoformat(str(found)).isoformat()
    except ValueError:
        raise item.error(f"expected a date as 2027-06-30, found {found!r}") from None
