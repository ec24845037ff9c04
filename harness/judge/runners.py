"""The runner contract: a session that asks for both runners must have run both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.core import CaseResult, Json

BOTH = frozenset({"v1", "v2"})


def missing_runner(results: Sequence[CaseResult]) -> str:
    """One sentence naming a runner that was asked for and never ran; empty where all is well.

    Only sessions whose settings ask for both are held to it. What ran is what the effect judge
    read from the live runners; a case that was not asked for its effect proves none.
    """
    counted = [result for result in results if result.counts]
    asked = {side.runner for r in counted for side in (r.case.baseline, r.case.target)}
    if not asked >= BOTH:
        return ""
    lacking = BOTH - {runner for result in counted for runner in live_runners(result)}
    if not lacking:
        return ""
    names = " and ".join(sorted(name.upper() for name in lacking))
    return (
        f"Both runners were asked for, but no run was proven to be {names}: nothing here speaks "
        f"of {'it' if len(lacking) == 1 else 'them'}."
    )


def live_runners(result: CaseResult) -> Iterator[str]:
    """Runner versions that the effect judge found live, of either side."""
    for finding in result.findings:
        rows: Json = finding.evidence.get("rows") if finding.judge == "effect" else None
        for row in rows if isinstance(rows, list | tuple) else ():
            if isinstance(row, Mapping) and row.get("name") == "runner":
                yield from (str(row[side]) for side in ("baseline", "target") if row.get(side))
