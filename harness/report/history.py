"""Since when a cell is right or wrong: ordered verdicts of one setting into a few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.core import CaseResult

from .order import order_releases, release_of, same_but_release

WORST: tuple[str, ...] = ("FAIL", "ERROR", "VACUOUS", "UNSUPPORTED", "PASS")
"""Verdict names, the one to look at first before the others."""
STATES: dict[str, str] = {
    "PASS": "right",
    "FAIL": "wrong",
    "VACUOUS": "not proven",
    "UNSUPPORTED": "not offered",
    "ERROR": "not known",
}
NOT_RUN = "not run"
_NEVER = {"not offered": "never offered", "not known": "never known", NOT_RUN: NOT_RUN}

Seen = tuple[str, str | None]
"""A release's label and the verdict there by name; None where the cell was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Releases in a row with one state."""

    state: str
    releases: tuple[str, ...]

    @property
    def words(self) -> str:
        first, last = self.releases[0], self.releases[-1]
        if len(self.releases) > 2:
            return f"{self.state} from {first} to {last}"
        return f"{self.state} in {' and '.join(self.releases)}"


def say_since(seen: Sequence[Seen]) -> str:
    """Since when a setting is in the state it is in, and what went wrong before.

    Args:
        seen: every release in order, with the verdict there.

    Returns:
        `right since 0.28.0`; `wrong in 0.28.0, right again in 0.32.0`; `never proven`.
    """
    stretches = _stretches([(r, STATES[v] if v else NOT_RUN) for r, v in seen])
    if not stretches:
        return NOT_RUN
    states = {s.state for s in stretches}
    if not states & {"right", "wrong"} and len(seen) > 1:
        return (
            _NEVER.get(stretches[0].state, "never proven") if len(states) == 1 else "never proven"
        )
    *earlier, last = stretches
    if last.state == NOT_RUN:
        known = seen[: len(seen) - len(last.releases)]
        return f"{say_since(known)}, {NOT_RUN} since {last.releases[0]}"
    if not earlier and len(last.releases) == 1 and len(seen) == 1:
        return last.words
    same = next((i for i, s in enumerate(earlier) if s.state == last.state), None)
    start = len(earlier) if same is None else same
    told = [s for i, s in enumerate(earlier) if i > start or s.state == "wrong" != last.state]
    again = "since" if same is None else ("again in" if len(last.releases) == 1 else "again since")
    now = f"{last.state} {again} {last.releases[0]}" + _unknown_before(seen, last, told)
    return ", ".join([*(s.words for s in told), now])


def _unknown_before(seen: Sequence[Seen], last: _Stretch, told: Sequence[_Stretch]) -> str:
    """` (0.26.0 not known)` where the state may have begun earlier than it was seen; else empty."""
    start = [release for release, _ in seen].index(last.releases[0])
    found: list[tuple[str, str]] = []
    for release, verdict in reversed(seen[:start]):
        state = STATES[verdict] if verdict else NOT_RUN
        if state not in (NOT_RUN, STATES["ERROR"]) or any(release in t.releases for t in told):
            break
        found.insert(0, (release, state))
    return f" ({', '.join(f'{release} {state}' for release, state in found)})" if found else ""


def say_history(seen: Sequence[Seen]) -> str:
    """`VACUOUS since 0.26.0, PASS since 0.28.0`; empty where only one release is known."""
    stretches = _stretches([(r, v or NOT_RUN) for r, v in seen])
    if len(seen) < 2:
        return ""
    return ", ".join(f"{s.state} since {s.releases[0]}" for s in stretches)


def say_change(seen: Sequence[Seen]) -> str:
    """For a release held against the one before it: where they differ."""
    verdicts = {v for _, v in seen if v}
    wrong = [release for release, v in seen if v == "FAIL"]
    if wrong:
        return f"another output since {wrong[0]}" if len(wrong) == 1 else _at(wrong)
    return "same output" if verdicts == {"PASS"} else say_history(seen)


def _at(releases: Sequence[str]) -> str:
    return f"another output in {', '.join(releases[:-1])} and again in {releases[-1]}"


def histories(results: Iterable[CaseResult]) -> dict[str, str]:
    """Case id -> its cell's verdicts over the releases; cells of a single release have none."""
    listed = list(results)
    rows = verdict_rows(listed)
    said = {}
    for result in listed:
        if result.counts and (text := say_history(rows[row_key(result)])):
            said[result.case.case_id] = text
    return said


def row_key(result: CaseResult) -> tuple[str, str]:
    """Engine, and all that cells of one row share."""
    return result.case.target.engine, same_but_release(result.case)


def verdict_rows(results: Sequence[CaseResult]) -> Mapping[tuple[str, str], tuple[Seen, ...]]:
    """Row key -> the worst verdict in each of the engine's releases, in order."""
    order = order_releases(results)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for result in results:
        if result.counts:
            row = rows.setdefault(row_key(result), {})
            release, verdict = release_of(result.case.target), result.verdict.value
            row[release] = min(row.get(release, verdict), verdict, key=WORST.index)
    return {
        key: tuple((release, row.get(release)) for release in order[key[0]])
        for key, row in rows.items()
    }


def _stretches(seen: Iterable[tuple[str, str]]) -> list[_Stretch]:
    """Neighbours of one state put together; releases before the first run are left out."""
    found: list[_Stretch] = []
    for release, state in seen:
        if not found and state == NOT_RUN:
            continue
        if found and found[-1].state == state:
            found[-1] = _Stretch(state=state, releases=(*found[-1].releases, release))
        else:
            found.append(_Stretch(state=state, releases=(release,)))
    return found
