"""Which runners really ran for each lifecycle and offload mode, read from the live runners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.core import CaseResult, Run, Setting

RUNNERS = ("v1", "v2")
RAN, NEVER, UNASKED = "ran", "never ran", "–"  # noqa: RUF001


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow:
    """One lifecycle under one offload mode."""

    workload: str
    """Name of a lifecycle, or of a workload of one generate."""
    mode: str
    """`none`, `uva`, `uva-copy`, `prefetch` or another backend's name."""
    ran: tuple[str, ...]
    """Runners that a live run of it showed."""
    never_ran: tuple[str, ...]
    """Runners that were asked for, and that no run showed."""

    @property
    def words(self) -> tuple[str, ...]:
        """For each of `RUNNERS`: that it ran, never did although asked for, or was not asked."""
        told = {**dict.fromkeys(self.ran, RAN), **dict.fromkeys(self.never_ran, NEVER)}
        return tuple(told.get(runner, UNASKED) for runner in RUNNERS)


def view_coverage(
    results: Sequence[CaseResult], runs: Mapping[str, Run]
) -> tuple[CoverageRow, ...]:
    """A row for each lifecycle and mode, in the order they ran; empty where no runner is known.

    Args:
        results: every case; controls do not count.
        runs: run id -> run; a run that is missing shows nothing.
    """
    asked: dict[tuple[str, str], set[str]] = {}
    ran: dict[tuple[str, str], set[str]] = {}
    for result in results:
        if not result.counts:
            continue
        for setting, run in _sides(result, runs):
            key = (result.case.workload.name, mode_name(setting))
            if setting.runner is not None:
                asked.setdefault(key, set()).add(setting.runner)
            if run is not None and run.probe is not None and run.probe.runner is not None:
                ran.setdefault(key, set()).add(run.probe.runner)
    return tuple(
        CoverageRow(
            workload=key[0],
            mode=key[1],
            ran=tuple(sorted(ran.get(key, ()))),
            never_ran=tuple(sorted(asked.get(key, set()) - ran.get(key, set()))),
        )
        for key in dict.fromkeys((*asked, *ran))
    )


def is_telling(rows: Sequence[CoverageRow]) -> bool:
    """Whether the table says more than the counts do: several workloads, or a runner missing."""
    return len({row.workload for row in rows}) > 1 or any(row.never_ran for row in rows)


def mode_name(setting: Setting) -> str:
    """How weights reach compute: `uva-copy` where views are switched off."""
    backend = setting.offload.resolved_backend
    return "uva-copy" if backend == "uva" and not setting.offload.uva else backend


def _sides(result: CaseResult, runs: Mapping[str, Run]) -> Iterator[tuple[Setting, Run | None]]:
    """The target, and the baseline too where the case compares runners."""
    case = result.case
    yield case.target, runs.get(result.target_run_id or "")
    if case.baseline.runner != case.target.runner:
        yield case.baseline, runs.get(result.baseline_run_id or "")
