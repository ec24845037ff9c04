"""A session: each run launched once, cases judged as they arrive, an interrupt keeps what was."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from harness import pipeline
from harness.core import (
    ComparisonFailed,
    ExitCode,
    LaunchError,
    Plan,
    PlannedCase,
    RunKey,
    RunStatus,
    Skipped,
    Verdict,
)
from harness.pipeline import Options, Progress, Session
from harness.record import load_session
from tests.builders import (
    PREFETCH,
    UVA,
    build_case,
    build_expectation,
    build_null_case,
    build_run,
)


def plan_case(case):
    return PlannedCase(
        case=case,
        baseline_key=RunKey(setting=case.baseline, workload=case.workload),
        target_key=RunKey(
            setting=case.target, workload=case.workload, repeat=int(case.role == "null")
        ),
    )


CASES = [build_null_case(), build_case(UVA), build_case(PREFETCH)]
PLAN = Plan(cases=tuple(plan_case(c) for c in CASES))


class ScriptedLauncher:
    """Answers every key with a run that shows what was asked; `stop_at` acts as Ctrl-C there."""

    stop_at = None

    def __init__(self, _runs_dir, **options):
        self.options, self.launched, self.interrupted = options, [], threading.Event()
        self.lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.interrupted.set()

    def launch(self, key):
        with self.lock:
            self.launched.append(key.key)
        expected = build_expectation(key.setting)
        run = replace(build_run(key.setting, expected), run_id=key.key)
        if self.stop_at and self.stop_at(key):
            assert self.interrupted.wait(20)
            return replace(run, status=RunStatus.INTERRUPTED, outputs=(), probe=None)
        return run

    def interrupt(self):
        self.interrupted.set()


@pytest.fixture
def open_session(tmp_path, monkeypatch):
    """`open_session(**options)` -> a Session over a scripted launcher."""
    monkeypatch.setattr(pipeline, "Launcher", ScriptedLauncher)

    def start(watch=None, **options):
        return Session(tmp_path, options=Options(**{"jobs": 2, **options}), watch=watch)

    return start


def test_each_unique_run_is_launched_once(open_session):
    with open_session() as session:
        outcome = session.run_plan(PLAN, controls=False)

    launched = session.launcher.launched
    assert sorted(k.key for k in PLAN.runs) == sorted(launched)
    assert 4 == len(launched)
    assert 0 == outcome.exit_code, outcome.sentence


def test_threads_that_ask_for_one_run_share_it(open_session):
    key = PLAN.runs[0]
    with open_session() as session, ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(session.run, [key] * 40))

    assert [key.key] == session.launcher.launched
    assert 1 == len({id(run) for run in runs})


def test_a_failed_launch_fails_everyone_who_asked(open_session, monkeypatch):
    def fail(_self, _key):
        raise RuntimeError("no interpreter")

    monkeypatch.setattr(ScriptedLauncher, "launch", fail)
    with open_session() as session:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no interpreter"):
                session.run(PLAN.runs[0])


def test_options_reach_the_launcher(open_session):
    session = open_session(jobs=3, num_threads=2, cold=True, deadline_s=7.0)

    wanted = {"jobs": 3, "num_threads": 2, "cold": True, "deadline_s": 7.0}
    assert wanted == session.launcher.options


def test_a_skipped_case_is_recorded_with_its_reason(open_session):
    plan = Plan(cases=(), unsupported=(Skipped(case=CASES[1], reason="no such device"),))
    with open_session() as session:
        outcome = session.run_plan(plan)

    (result,) = load_session(session.folder).results
    assert (Verdict.UNSUPPORTED, "no such device") == (result.verdict, result.lead.summary)
    assert ExitCode.UNSUPPORTED == outcome.exit_code


def test_an_interrupt_keeps_the_judged_cases_and_does_not_pass(open_session, monkeypatch):
    """The last run never ends by itself; Ctrl-C comes once the first two cases are recorded."""
    monkeypatch.setattr(
        ScriptedLauncher, "stop_at", lambda _self, key: key.key == PLAN.runs[-1].key
    )
    monkeypatch.setattr(pipeline, "wait", interrupting_wait(2))
    with open_session() as session:
        interrupting_wait.session = session
        with pytest.raises(KeyboardInterrupt):
            session.run_plan(PLAN)
        outcome = session.finish()

    loaded = load_session(session.folder)
    assert ["null", "case"] == [r.case.role for r in loaded.results]
    assert outcome == loaded.outcome
    assert ExitCode.ERROR == outcome.exit_code
    assert outcome.sentence.startswith("Interrupted: 2 of 3 cases were judged. So far: ")


def test_a_run_that_was_interrupted_without_a_word_cuts_the_session_short(
    open_session, monkeypatch
):
    """No exception comes: the launch itself says that it was interrupted."""

    def launch(self, key):
        run = replace(build_run(key.setting, build_expectation(key.setting)), run_id=key.key)
        is_last = key.key == PLAN.runs[-1].key
        return replace(run, status=RunStatus.INTERRUPTED, outputs=()) if is_last else run

    monkeypatch.setattr(ScriptedLauncher, "launch", launch)
    with open_session() as session:
        outcome = session.run_plan(PLAN)

    assert ExitCode.ERROR == outcome.exit_code
    assert outcome.sentence.startswith("Interrupted: 2 of 3 cases were judged.")


def leave_by(session, error):
    """Judge one case, then leave the session by `error`."""

    def judge_and_raise():
        with session:
            session.compare(PLAN.cases[1])
            raise error

    with pytest.raises(type(error)):
        judge_and_raise()
    return session


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LaunchError("no interpreter")])
def test_a_session_left_by_an_error_is_recorded_as_cut_short(open_session, error):
    session = leave_by(open_session(), error)

    loaded = load_session(session.folder)
    assert ExitCode.ERROR == loaded.outcome.exit_code
    assert loaded.manifest["is_cut_short"]


def test_a_launch_that_could_not_be_made_is_not_forgotten(open_session, monkeypatch):
    with open_session() as session:
        session.compare(PLAN.cases[1])
        monkeypatch.setattr(session.launcher, "launch", lambda _key: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.compare(PLAN.cases[2])
        outcome = session.finish()

    assert ExitCode.ERROR == outcome.exit_code
    assert outcome.sentence.startswith("Interrupted: 1 of 2 cases were judged.")


def test_a_verdict_that_was_raised_is_no_interruption(open_session):
    session = leave_by(open_session(), ComparisonFailed("FAIL"))

    loaded = load_session(session.folder)
    assert loaded.outcome.sentence.startswith("No control was run")
    assert loaded.manifest["is_cut_short"] is False
    assert 1 == loaded.manifest["num_cases"]


def test_a_guard_is_judged_once(open_session):
    with open_session() as session:
        first = session.compare_once(PLAN.cases[0])
        assert first is session.compare_once(PLAN.cases[0])

    assert 1 == len(session.results)


def interrupting_wait(num_cases):
    """`concurrent.futures.wait` that raises once so many cases are recorded."""
    from concurrent.futures import wait

    def wait_or_raise(pending, **options):
        if len(interrupting_wait.session.results) >= num_cases:
            raise KeyboardInterrupt
        return wait(pending, **options)

    return wait_or_raise


def test_judging_happens_outside_the_main_thread(open_session):
    """Ctrl-C is raised in the main thread: there it could cut a record or a line in two."""
    threads = []

    def watch(progress):
        if progress.kind == "case_finished":
            threads.append(threading.current_thread())

    with open_session(watch=watch) as session:
        session.run_plan(PLAN)

    assert 3 == len(threads)
    assert threading.main_thread() not in threads


def test_watchers_are_told_of_every_step(open_session):
    seen = []
    with open_session(watch=seen.append, jobs=1) as session:
        session.run_plan(PLAN)

    kinds = [p.kind for p in seen]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert {"run_started": 4, "run_finished": 4, "case_finished": 3} == counts
    assert (4, 4, 3, 3) == (
        seen[-1].num_runs_done, seen[-1].num_runs, seen[-1].num_cases_done, seen[-1].num_cases,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("done", "total", "expected"), [(0, 8, None), (2, 8, 12.0), (8, 8, 3.0), (1, 0, None)]
)
def test_expected_time_follows_the_pace(done, total, expected):
    progress = Progress(kind="run_finished", elapsed_s=3.0, num_runs_done=done, num_runs=total)

    assert expected == progress.expected_s


def test_jobs_default_to_the_usable_cores(monkeypatch):
    monkeypatch.setattr(pipeline.os, "sched_getaffinity", lambda _pid: {0, 1, 2})

    assert (3, 5) == (Options().num_jobs, Options(jobs=5).num_jobs)
