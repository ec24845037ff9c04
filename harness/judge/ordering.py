"""Was everything that touched the same bytes put in order by streams and events?

Judged from what the host queued, so a missing wait is seen in one run, whatever the schedule was.
"""

from __future__ import annotations

from harness.core import Case, Finding, Json, OrderingTrace, Race, Run, Setting, Verdict, encode

from .base import finding, nothing_offloaded, probe_of

INSTRUMENT = "ordering"
MAX_RACES = 50
"""Causes kept as evidence."""


def judge_ordering(case: Case, baseline: Run, target: Run) -> Finding | None:
    """Look for pairs of accesses without an order, on the target first, then on the baseline.

    Abstains when neither side was asked to record. VACUOUS when a recording that was asked for is
    missing, or nothing was checked where weights are copied ahead of use.
    """
    sides = [
        (name, setting, run)
        for name, setting, run in (
            ("target", case.target, target),
            ("baseline", case.baseline, baseline),
        )
        if INSTRUMENT in setting.instruments
    ]
    if not sides:
        return None
    evidence: dict[str, Json] = {name: _evidence(run) for name, _, run in sides}
    races = [(name, race) for name, _, run in sides for race in _races(run)]
    if races:
        evidence["missing"] = [race.missing for _, race in races][:MAX_RACES]
        summary = _describe(*races[0], len(races))
        cause = f"no order between {races[0][1].first_stream} and {races[0][1].second_stream}"
        return finding("ordering", Verdict.FAIL, summary, evidence, cause=cause)
    for name, setting, run in sides:
        if reason := _unproven(setting, run):
            summary = f"{reason} on the {name}: no order is proven"
            cause = _cause(setting, run, reason)
            return finding("ordering", Verdict.VACUOUS, summary, evidence, cause=cause)
    return finding("ordering", Verdict.PASS, _proof(probe_of(sides[0][2]).ordering), evidence)


def _races(run: Run) -> tuple[Race, ...]:
    trace = probe_of(run).ordering
    return () if trace is None else trace.races


def _describe(side: str, race: Race, num_causes: int) -> str:
    where = "" if side == "target" else " (in the baseline)"
    more = f" (and {num_causes - 1} more)" if num_causes > 1 else ""
    return f"{race.missing}{where}, seen {race.count} times{more}"


def _unproven(setting: Setting, run: Run) -> str:
    trace = probe_of(run).ordering
    if trace is None:
        return "the recording that was asked for is missing"
    if trace.num_work == 0:
        return "no launch was seen"
    if setting.offload.resolved_backend == "prefetch" and not trace.num_checked:
        return "no pair of accesses was checked"
    return ""


def _cause(setting: Setting, run: Run, reason: str) -> str:
    if not setting.offload.is_none and not probe_of(run).offloaded_bytes:
        return nothing_offloaded(run)
    return reason


def _proof(trace: OrderingTrace | None) -> str:
    assert trace is not None, "a missing trace was told before"
    return (
        f"All {trace.num_checked:,} pairs of accesses to the same bytes are in order, over "
        f"{trace.num_work:,} pieces of work, {trace.num_copies:,} of them copies."
    )


def _evidence(run: Run) -> Json:
    trace = probe_of(run).ordering
    if trace is None:
        return None
    return {
        "num_work": trace.num_work,
        "num_copies": trace.num_copies,
        "num_checked": trace.num_checked,
        "num_causes": len(trace.races),
        "races": [encode(race) for race in trace.races[:MAX_RACES]],
        "not_observed": list(trace.not_observed),
    }
