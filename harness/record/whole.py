"""Says what keeps a record, or the shards of one matrix, from being whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .load import Session


def find_shortfall(session: Session) -> str | None:
    """Why a session's record is not all of what was planned; None when it is.

    Returns:
        `unfinished: 3 of 12 cases were recorded`, or likewise `interrupted`, the first of the
        record's problems, or the bare numbers.
    """
    planned, recorded = count_planned(session), len(session.results)
    done = f"{recorded} of {planned} cases were recorded"
    if session.outcome is None:
        return f"unfinished: {done}"
    if session.manifest.get("is_cut_short"):
        return f"interrupted: {done}"
    if gaps := session.manifest.get("gaps"):
        return f"incomplete ({gaps[0]}): {done}"
    if session.problems:
        return f"{session.problems[0]}: {done}"
    return done if recorded < planned else None


def count_planned(session: Session) -> int:
    """Cases the session was to record; those it has, where the manifest does not say."""
    return max(int(session.manifest.get("num_cases") or 0), len(session.results))


def find_missing(shards: Sequence[Session]) -> Iterator[str]:
    """What shards that say `i/n` lack: each missing i, and shards cut by another n."""
    named = [str(s.manifest["shard"]) for s in shards if s.manifest.get("shard")]
    totals = {text.partition("/")[2] for text in named}
    if len(totals) > 1:
        yield f"shards of different cuts were given: {', '.join(sorted(set(named)))}"
    for total in sorted(totals):
        for index in range(1, int(total) + 1):
            if f"{index}/{total}" not in named:
                yield f"shard {index}/{total} is missing"
