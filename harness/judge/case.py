"""All judges' words on one case; runs that did not come through speak first."""

from __future__ import annotations

from harness.core import Case, Finding, Registry, Run, RunStatus, Verdict

from .base import Judge, shortlist
from .steps import judge_lifecycle

JUDGES: Registry[Judge] = Registry("judge")
JUDGES.register("effect", "harness.judge.effect:judge_effect")
JUDGES.register("placement", "harness.judge.placement:judge_placement")
JUDGES.register("memory", "harness.judge.memory:judge_memory")
JUDGES.register("ordering", "harness.judge.ordering:judge_ordering")
JUDGES.register("integrity", "harness.judge.integrity:judge_integrity")
JUDGES.register("tokens", "harness.judge.tokens:judge_tokens")

_ENDINGS = {
    RunStatus.CRASH: "crashed",
    RunStatus.HANG: "passed its deadline",
    RunStatus.OOM: "ran out of device memory",
    RunStatus.INTERRUPTED: "was interrupted",
}


def judge_case(case: Case, baseline: Run, target: Run) -> tuple[Finding, ...]:
    """Judge one case.

    A run that did not come through, or whose internals could not be read, gives a single ERROR
    or UNSUPPORTED finding; two equal settings give a single VACUOUS one. Otherwise every judge
    named in `case.judges` speaks in that order; those that abstain leave nothing.

    Raises:
        UsageError: `case.judges` names an unknown judge.
    """
    sides = (("baseline", baseline), ("target", target))
    for check in (_absent, _ended_badly, _refused, _unread):
        for side, run in sides:
            if (word := check(side, run)) is not None:
                return (word,)
    if case.role != "null" and case.baseline == case.target:
        summary = "both sides ask for the same setting: nothing was compared"
        return (_word("case", Verdict.VACUOUS, summary, cause=summary),)
    words = (_ask(name, case, baseline, target) for name in case.judges)
    return tuple(word for word in words if word is not None)


def _ask(name: str, case: Case, baseline: Run, target: Run) -> Finding | None:
    judge = JUDGES.get(name)
    if case.workload.is_lifecycle:
        return judge_lifecycle(name, judge, case, baseline, target)
    return judge(case, baseline, target)


def _absent(side: str, run: Run) -> Finding | None:
    """All cells of one interpreter have one cause, whichever side could not run."""
    if run.status is not RunStatus.ABSENT:
        return None
    reason = run.error or "its interpreter or its engine is not there"
    summary = f"the {side} could not run: {reason}"
    return _word("run", Verdict.ERROR, summary, side, run, cause=reason)


def _ended_badly(side: str, run: Run) -> Finding | None:
    if run.status not in _ENDINGS:
        return None
    ending = _ENDINGS[run.status]
    reason = (run.error or "no error line was left").removeprefix("out of device memory: ")
    summary = f"the {side} {ending}: {reason}"
    return _word("run", Verdict.ERROR, summary, side, run, cause=f"a run {ending}")


def _refused(side: str, run: Run) -> Finding | None:
    if run.status is not RunStatus.UNSUPPORTED:
        return None
    reason = run.error or "no reason was given"
    summary = f"the engine refused the {side}'s setting: {reason}"
    return _word("run", Verdict.UNSUPPORTED, summary, side, run, cause=reason)


def _unread(side: str, run: Run) -> Finding | None:
    if run.probe is None:
        summary = f"the {side} could not be probed: it answered, but nothing was read inside it"
        return _word("probe", Verdict.ERROR, summary, side, run, cause="no probe was taken")
    if run.probe.drift:
        moved = shortlist(list(run.probe.drift), 6)
        summary = f"the {side}'s internals moved, not found: {moved}"
        return _word("probe", Verdict.ERROR, summary, side, run, cause=f"probe drift: {moved}")
    return None


def _word(
    judge: str,
    verdict: Verdict,
    summary: str,
    side: str = "",
    run: Run | None = None,
    *,
    cause: str,
) -> Finding:
    evidence: dict[str, object] = {"cause": cause}
    if run is not None:
        evidence |= {"side": side, "status": run.status.value, "run_id": run.run_id}
        evidence |= {"error": run.error, "log_tail": list(run.log_tail)}
        evidence |= {"drift": list(run.probe.drift) if run.probe else []}
    return Finding(judge=judge, verdict=verdict, summary=summary, evidence=evidence)
