"""Live progress: one line per case as it is judged, and a status line while runs are out."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.status import Status

from harness.core import CaseResult, Plan
from harness.pipeline import Progress
from harness.report import case_line

from .console import count, err, out


class Watch:
    """Prints a session's progress; with `quiet` only the status line on a terminal's stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._status = Status("", console=err) if err.is_terminal else None
        self._running: dict[str, str] = {}
        self._last: Progress | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Watch:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def start(self, title: str, plan: Plan, jobs: int) -> None:
        """Print the headline: what will run."""
        if self.quiet:
            return
        cases = [*(p.case for p in plan.cases), *(s.case for s in plan.unsupported)]
        asked = [case.workload.model for case in cases]
        models = sorted({f"{model.display_name} in {model.dtype}" for model in asked})
        controls = sum(case.role in ("null", "control") for case in cases)
        cells = len(cases) - controls
        out.print(
            f"{title}: {', '.join(models)}; {count(cells, 'cell')} and "
            f"{count(controls, 'control')} "
            f"from {count(len(plan.runs), 'run')}, {jobs} at a time",
            markup=False,
        )

    def __call__(self, progress: Progress) -> None:
        """Show one step of a session."""
        with self._lock:
            self._last = progress
            if progress.kind == "run_started" and progress.key is not None:
                self._running[progress.key.key] = progress.key.setting.setting_id
            elif progress.kind == "run_finished" and progress.key is not None:
                self._running.pop(progress.key.key, None)
            elif progress.result is not None and not self.quiet:
                self._print_line(progress.result)
            if self._status is not None:
                self._status.update(self._line(progress))

    @staticmethod
    def _print_line(result: CaseResult) -> None:
        """One line for a case: cut to a terminal's width, whole in a log."""
        if out.is_terminal:
            out.print(case_line(result), no_wrap=True, overflow="ellipsis", soft_wrap=False)
        else:
            out.print(case_line(result))

    def _line(self, progress: Progress) -> str:
        expected = progress.expected_s
        left = f" of about {expected:.0f} s" if expected is not None else ""
        now = ", ".join(self._running.values()) or "judging"
        return (
            f"{progress.num_cases_done}/{progress.num_cases} cases, "
            f"{progress.elapsed_s:.0f} s{left}: {now}"
        )
