"""What a session tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.core import CaseResult, Run, RunKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What just happened in a session, for whoever watches."""

    kind: str
    """`run_started`, `run_finished` or `case_finished`."""
    key: RunKey | None = None
    run: Run | None = None
    result: CaseResult | None = None
    elapsed_s: float = 0.0
    num_runs_done: int = 0
    num_runs: int = 0
    num_cases_done: int = 0
    num_cases: int = 0

    @property
    def expected_s(self) -> float | None:
        """Expected total wall time, from the pace so far; None where it cannot be told."""
        if not self.num_runs_done or not self.num_runs:
            return None
        return self.elapsed_s * self.num_runs / self.num_runs_done


Watcher = Callable[[Progress], None]
