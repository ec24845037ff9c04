"""The seven stages in order; the only file that knows it.

A `Session` launches each unique run once, judges a case as soon as both its runs are there, and
records every verdict at once, so that an interrupted session keeps what it had.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from harness.core import (
    Case,
    CaseResult,
    ComparisonError,
    Finding,
    Outcome,
    Plan,
    PlannedCase,
    Run,
    RunKey,
    RunStatus,
    Verdict,
    fold,
)
from harness.core.codec import Json
from harness.judge import check_waive, conclude, judge_case
from harness.launch import Launcher
from harness.progress import Progress, Watcher
from harness.record import Recorder, new_session_id
from harness.rerun import compare_command

__all__ = ["Options", "Progress", "Session", "Watcher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session launches; nothing here may change what a run computes but `num_threads`."""

    jobs: int = 0
    """Launches at once; 0 takes one per core."""
    num_threads: int = 1
    """Compute threads of each launch; equal for all, since it can change rounding."""
    cold: bool = False
    """Start a new interpreter for every launch instead of forking a warm one."""
    deadline_s: float = 300.0
    """A launch that takes longer is a HANG."""

    @property
    def num_jobs(self) -> int:
        """`jobs`, or the number of usable cores."""
        return self.jobs or len(os.sched_getaffinity(0))


class Session:
    """One invocation: a record folder, a launcher, and every run made so far."""

    def __init__(
        self,
        reports_dir: Path,
        *,
        manifest: Mapping[str, Json] | None = None,
        options: Options | None = None,
        watch: Watcher | None = None,
        session_id: str | None = None,
        command_for: Callable[[Case], str] | None = None,
    ) -> None:
        self.options = options or Options()
        self.session_id = session_id or new_session_id()
        self.recorder = Recorder(
            Path(reports_dir) / self.session_id, {**(manifest or {}), "session_id": self.session_id}
        )
        self.launcher = Launcher(
            self.recorder.runs_dir,
            jobs=self.options.num_jobs,
            num_threads=self.options.num_threads,
            deadline_s=self.options.deadline_s,
            cold=self.options.cold,
        )
        self.results: list[CaseResult] = []
        self.runs: dict[str, Run] = {}
        self._watch = watch or (lambda _progress: None)
        self._command_for = command_for or compare_command
        self._futures: dict[str, Future[Run]] = {}
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._totals = (0, 0)
        self._is_cut_short = False
        self._is_finished = False

    def __enter__(self) -> Session:
        self.launcher.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.launcher.__exit__(kind, error, trace)
        if error is not None and not self._is_finished:
            self._is_cut_short |= not isinstance(error, ComparisonError)
            self.finish()

    @property
    def folder(self) -> Path:
        """The session's folder under the reports folder."""
        return self.recorder.session_dir

    def run(self, key: RunKey) -> Run:
        """Launch `key`, or return the run it already gave. Thread-safe; waits for the run."""
        with self._lock:
            future = self._futures.get(key.key)
            mine = future is None
            if future is None:
                future = self._futures[key.key] = Future()
        if mine:
            try:
                future.set_result(self._launch(key))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def compare(self, planned: PlannedCase) -> CaseResult:
        """Run both sides of one case, judge it and record it."""
        with self._lock:
            self._totals = (self._totals[0], self._totals[1] + 1)
        try:
            baseline, target = self.run(planned.baseline_key), self.run(planned.target_key)
            return self._conclude_case(planned, baseline, target)
        except BaseException:
            self._is_cut_short = True
            raise

    def compare_once(self, planned: PlannedCase) -> CaseResult:
        """`compare`, unless this session already has this very case: then that result."""
        found = next((r for r in self.results if r.case == planned.case), None)
        return found or self.compare(planned)

    def look(self, planned: PlannedCase) -> tuple[Finding, ...]:
        """Run both sides of one comparison and judge it, without recording a case."""
        return judge_case(
            planned.case, self.run(planned.baseline_key), self.run(planned.target_key)
        )

    def run_plan(self, plan: Plan, *, controls: bool = True) -> Outcome:
        """Run a whole plan, `jobs` launches at once; cases are judged as their runs arrive.

        Judging has a thread of its own, so that Ctrl-C, which Python raises in the main thread
        wherever that happens to be, never cuts a case in two.

        Raises:
            KeyboardInterrupt: passed on after every child has ended; what was judged is recorded,
                and `finish` says that it is not all.
        """
        self._totals = (len(plan.runs), len(plan.cases) + len(plan.unsupported))
        for skipped in plan.unsupported:
            reason = Finding(judge="plan", verdict=Verdict.UNSUPPORTED, summary=skipped.reason)
            self._save(skipped.case, [reason])
        waiting = list(plan.cases)
        launching = ThreadPoolExecutor(self.options.num_jobs, thread_name_prefix="launch")
        judging = ThreadPoolExecutor(1, thread_name_prefix="judge")
        pending = {launching.submit(self.run, key) for key in plan.runs}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                waiting = judging.submit(self._judge_ready, waiting).result()
            self._is_cut_short |= bool(waiting)
        except BaseException:
            self._is_cut_short = True
            self.launcher.interrupt()
            raise
        finally:
            launching.shutdown(wait=True, cancel_futures=True)
            judging.shutdown(wait=True)
        return self.finish(controls=controls)

    def mark_cut_short(self) -> None:
        """Say that not all that was asked of this session was done."""
        self._is_cut_short = True

    def finish(self, *, controls: bool = True) -> Outcome:
        """Fold everything recorded so far into the session's outcome, and close the record.

        An invocation that was cut short does not pass, whatever its cases say; nor does one
        without a null case and a planted fault, unless `controls` says that they are off.
        """
        outcome = conclude(self.results, controls=controls)
        if self._is_cut_short:
            done, asked = len(self.results), self._totals[1]
            of = f"{done} of {asked}" if done < asked else f"{done}, and not all,"
            outcome = outcome.incomplete(f"Interrupted: {of} cases were judged.")
        if not self._is_finished:
            planned = self._totals[1] or self.recorder.manifest.get("num_cases", 0)
            self.recorder.update_manifest(num_cases=planned, is_cut_short=self._is_cut_short)
        self._is_finished = True
        self.recorder.close(outcome)
        return outcome

    def _launch(self, key: RunKey) -> Run:
        self._tell("run_started", key=key)
        run = self.launcher.launch(key)
        with self._lock:
            self.runs[key.key] = run
        self._tell("run_finished", key=key, run=run)
        return run

    def _judge_ready(self, waiting: Sequence[PlannedCase]) -> list[PlannedCase]:
        left = []
        for planned in waiting:
            baseline = self.runs.get(planned.baseline_key.key)
            target = self.runs.get(planned.target_key.key)
            if (
                baseline is None
                or target is None
                or RunStatus.INTERRUPTED in (baseline.status, target.status)
            ):
                left.append(planned)
            else:
                self._conclude_case(planned, baseline, target)
        return left

    def _conclude_case(self, planned: PlannedCase, baseline: Run, target: Run) -> CaseResult:
        case, words = planned.case, judge_case(planned.case, baseline, target)
        words += check_waive(case, words, datetime.now(UTC).date())
        return self._save(case, words, baseline, target)

    def _save(self, case: Case, findings: Sequence[Finding], *runs: Run) -> CaseResult:
        """Record a case; `runs` are its baseline and target, or none where it was not run."""
        ids: list[str | None] = [*(run.run_id for run in runs), None, None]
        result = CaseResult(
            case=case,
            verdict=fold(findings),
            findings=tuple(findings),
            baseline_run_id=ids[0],
            target_run_id=ids[1],
            session_id=self.session_id,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            duration_s=round(sum(run.timings.get("total", 0.0) for run in runs), 4),
            command=self._command_for(case),
        )
        with self._lock:
            self.recorder.save_result(result)
            self.results.append(result)
        self._tell("case_finished", result=result)
        return result

    def _tell(
        self,
        kind: str,
        *,
        key: RunKey | None = None,
        run: Run | None = None,
        result: CaseResult | None = None,
    ) -> None:
        self._watch(
            Progress(
                kind=kind,
                key=key,
                run=run,
                result=result,
                elapsed_s=time.monotonic() - self._started,
                num_runs_done=len(self.runs),
                num_runs=self._totals[0],
                num_cases_done=len(self.results),
                num_cases=self._totals[1],
            )
        )
