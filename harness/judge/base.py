"""What a judge is: a pure function of a case and its two runs, with no engine in sight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from harness.core import (
    Case,
    Expectation,
    Finding,
    Json,
    ProbeSnapshot,
    Run,
    Setting,
    Step,
    Verdict,
)

WORST_FIRST = (Verdict.FAIL, Verdict.VACUOUS, Verdict.PASS)
"""What one judge may say, the word that decides first."""


class Judge(Protocol):
    """Gives one word on one case, or None when the case asks nothing of it.

    Both runs are OK and carry a probe without drift: `judge_case` has seen to that.
    """

    def __call__(self, case: Case, baseline: Run, target: Run) -> Finding | None:
        """Judge `target` against `baseline` and `case.expected`."""
        ...


def probe_of(run: Run) -> ProbeSnapshot:
    """The run's probe; `judge_case` lets no run without one reach a judge."""
    assert run.probe is not None, "a judge is only asked about probed runs"
    return run.probe


def finding(
    judge: str, verdict: Verdict, summary: str, evidence: Mapping[str, Json], *, cause: str = ""
) -> Finding:
    """A finding whose evidence carries its `cause`: the part that many cells can share."""
    extra = {"cause": cause} if cause else {}
    return Finding(judge=judge, verdict=verdict, summary=summary, evidence={**evidence, **extra})


def nothing_offloaded(run: Run) -> str:
    """The shared cause of a case whose asked-for offload left no trace in the live engine."""
    probe = probe_of(run)
    runner = f" under runner {probe.runner}" if probe.runner else ""
    if probe.offloader_class == "NoopOffloader":
        return f"offload never took effect{runner} (NoopOffloader is live)"
    return f"offload never took effect{runner} ({probe.offloader_class} holds no parameter)"


def run_of_rank(run: Run, number: int) -> Run:
    """A run as its further rank `number`, the first of them 0, saw it alone."""
    probe = run.rank_probes[number]
    steps = tuple(each for each in run.step_rank_probes if each.rank == probe.rank)
    return replace(run, probe=probe, step_probes=steps, rank_probes=(), step_rank_probes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A side that was asked to record."""

    name: str
    setting: Setting
    run: Run
    steps: tuple[Step, ...]
    """Of the workload; the probe's `step_idx` says which it was taken after."""
    is_idle: bool = False
    """A rank whose layers are none that are offloaded, though those of another rank are."""

    @property
    def probe(self) -> ProbeSnapshot:
        """What was read inside it."""
        return probe_of(self.run)

    @property
    def place(self) -> str:
        """`` (in the baseline)``, `` (in the target's rank 1)``, or nothing for the target."""
        return "" if self.name == "target" else f" (in the {self.name})"


def recorded_sides(
    case: Case, baseline: Run, target: Run, instruments: Collection[str]
) -> list[Recorded]:
    """The sides that were asked for any of `instruments`, the target first, then further ranks."""
    sides = (("target", case.target, target), ("baseline", case.baseline, baseline))
    asked = [side for side in sides if set(instruments) & set(side[1].instruments)]
    steps = case.workload.steps
    found, further = [], []
    for name, setting, run in asked:
        idle = idle_ranks((case.expected, *case.expected_ranks))
        if name == "baseline":
            idle = idle_ranks((case.expected_baseline, *case.expected_baseline_ranks))
        side = Recorded(name=name, setting=setting, run=run, steps=steps, is_idle=0 in idle)
        found.append(side)
        further += [
            replace(
                side,
                name=f"{name}'s rank {probe.rank}",
                run=replace(run, probe=probe),
                is_idle=number in idle,
            )
            for number, probe in enumerate(run.rank_probes, 1)
        ]
    return found + further


def idle_ranks(expected: Sequence[Expectation]) -> set[int]:
    """Ranks that have to offload nothing though another one has; `expected` of each rank."""
    idle = {rank for rank, each in enumerate(expected) if not each.offloaded_params}
    return idle if len(idle) < len(expected) else set()


def proof_of_ranks(sides: Sequence[Recorded], proof: Callable[[Recorded], str]) -> str:
    """What proves the first side, and what proves each of its further ranks."""
    first, *others = sides
    mine = [side for side in others if side.name.startswith(f"{first.name}'s rank ")]
    texts = [f"Rank {side.probe.rank}: {proof(side)}" for side in mine]
    return " ".join([proof(first), *texts])


def first_unproven(
    judge: str,
    sides: list[Recorded],
    reason_of: Callable[[Recorded], str],
    evidence: Mapping[str, Json],
    what: str,
) -> Finding | None:
    """VACUOUS for the first side whose recording proves nothing; None when each proves something.

    Args:
        judge: whose finding it is.
        sides: as `recorded_sides` gives them.
        reason_of: why a side's recording proves nothing; empty when it does.
        evidence: of the finding.
        what: that remains unproven: `order`.
    """
    for side in sides:
        if reason := reason_of(side):
            lost = not side.setting.offload.is_none and not side.probe.offloaded_bytes
            cause = nothing_offloaded(side.run) if lost else reason
            summary = f"{reason} on the {side.name}: no {what} is proven"
            return finding(judge, Verdict.VACUOUS, summary, evidence, cause=cause)
    return None


def count_bytes(num_bytes: int) -> str:
    """`1,024 bytes`."""
    return f"{num_bytes:,} {'byte' if abs(num_bytes) == 1 else 'bytes'}"


def shortlist(names: list[str], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
