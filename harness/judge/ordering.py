"""Was everything that touched the same bytes put in order by streams and events?

Judged from what the host queued, so a missing wait is seen in one run, whatever the schedule was.
"""

from __future__ import annotations

from harness.core import Case, Finding, Json, OrderingTrace, Race, Run, Verdict, encode

from .base import Recorded, finding, first_unproven, proof_of_ranks, recorded_sides

INSTRUMENT = "ordering"
MAX_RACES = 50
"""Causes kept as evidence."""


def judge_ordering(case: Case, baseline: Run, target: Run) -> Finding | None:
    """Look for pairs of accesses without an order, on the target first, then on the baseline.

    Abstains when neither side was asked to record, and where nothing is copied ahead of use and
    nothing that was recorded could race. VACUOUS when a recording that was asked for is
    missing, or where weights are copied ahead of use no copy was seen or no pair of accesses to
    the buffer pool was checked.
    """
    sides = recorded_sides(case, baseline, target, (INSTRUMENT,))
    if not sides:
        return None
    evidence: dict[str, Json] = {side.name: _evidence(side.probe.ordering) for side in sides}
    races = [(side, race) for side in sides for race in _races(side.probe.ordering)]
    if races:
        evidence["missing"] = [race.missing for _, race in races][:MAX_RACES]
        summary = _describe(*races[0], len(races))
        cause = f"no order between {races[0][1].first_stream} and {races[0][1].second_stream}"
        return finding("ordering", Verdict.FAIL, summary, evidence, cause=cause)
    if not any(_may_race(side) for side in sides):
        return None
    if unproven := first_unproven("ordering", sides, _unproven, evidence, "order"):
        return unproven
    return finding("ordering", Verdict.PASS, proof_of_ranks(sides, _proof), evidence)


def _may_race(side: Recorded) -> bool:
    trace = side.probe.ordering
    is_prefetch = side.setting.offload.resolved_backend == "prefetch"
    return is_prefetch or trace is None or bool(trace.num_checked) or not trace.num_work


def _races(trace: OrderingTrace | None) -> tuple[Race, ...]:
    return () if trace is None else trace.races


def _describe(side: Recorded, race: Race, num_causes: int) -> str:
    more = f" (and {num_causes - 1} more)" if num_causes > 1 else ""
    return f"{race.missing}{side.place}, seen {race.count} times{more}"


def _unproven(side: Recorded) -> str:
    trace = side.probe.ordering
    if trace is None:
        return "the recording that was asked for is missing"
    if trace.num_work == 0:
        return "no launch was seen"
    if side.is_idle or side.setting.offload.resolved_backend != "prefetch":
        return ""
    if not trace.num_copies:
        return "no copy was seen"
    if not trace.num_pool_checked:
        return "no pair of accesses to the buffer pool was checked"
    return ""


def _proof(side: Recorded) -> str:
    trace = side.probe.ordering
    assert trace is not None, "a missing trace was told before"
    return (
        f"All {trace.num_checked:,} pairs of accesses to the same bytes are in order, over "
        f"{trace.num_work:,} pieces of work, {trace.num_copies:,} of them copies."
    )


def _evidence(trace: OrderingTrace | None) -> Json:
    if trace is None:
        return None
    return {
        "num_work": trace.num_work,
        "num_copies": trace.num_copies,
        "num_checked": trace.num_checked,
        "num_pool_checked": trace.num_pool_checked,
        "num_causes": len(trace.races),
        "races": [encode(race) for race in trace.races[:MAX_RACES]],
        "not_observed": list(trace.not_observed),
    }
