"""Which runner really ran is read from the live runners, not from what was asked."""

from dataclasses import replace

from rich.console import Console

from harness.judge import conclude
from harness.report import build_view, render_html, summary, view_coverage
from harness.report.coverage import CoverageRow, is_telling
from tests.builders import (
    PREFETCH,
    UVA,
    baseline_run,
    build_case,
    build_null_case,
    build_result,
    target_run,
)


def record(runner, *, offload=UVA, workload="short", live=None):
    """A case of one runner, and its runs by id."""
    case = build_case(offload, runner=runner)
    case = replace(case, workload=replace(case.workload, name=workload))
    runs = [
        replace(run, run_id=f"{side}-{workload}-{run.run_id}")
        for side, run in (("b", baseline_run(case)), ("t", target_run(case)))
    ]
    runs = [replace(run, probe=replace(run.probe, runner=live or runner)) for run in runs]
    ids = {"baseline_run_id": runs[0].run_id, "target_run_id": runs[1].run_id}
    return build_result(case, **ids), {run.run_id: run for run in runs}


def lay_out(*recorded):
    runs = [item for _, runs in recorded for item in runs.items()]
    return [result for result, _ in recorded], dict(runs)


def to_text(renderable):
    console = Console(width=120, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_each_workload_and_mode_has_a_row_with_the_runners_that_ran():
    copied = replace(UVA, uva=False)
    results, runs = lay_out(
        record("v1"), record("v2"), record("v1", offload=copied), record("v2", offload=PREFETCH)
    )

    assert [(r.workload, r.mode, r.ran, r.never_ran) for r in view_coverage(results, runs)] == [
        ("short", "uva", ("v1", "v2"), ()),
        ("short", "uva-copy", ("v1",), ()),
        ("short", "prefetch", ("v2",), ()),
    ]


def test_a_runner_that_was_asked_for_and_never_ran_is_told():
    results, runs = lay_out(record("v1"), record("v2", workload="patch", live="v1"))
    rows = view_coverage(results, runs)

    assert rows[1] == CoverageRow(workload="patch", mode="uva", ran=("v1",), never_ran=("v2",))
    assert rows[1].words == ("ran", "never ran")
    assert is_telling(rows)


def test_controls_and_lost_runs_show_nothing():
    null = build_result(build_null_case(), baseline_run_id="b", target_run_id="t")
    result, _ = record("v2")

    (row,) = view_coverage([null, result], {})
    assert (row.ran, row.never_ran) == ((), ("v2",))


def test_one_workload_with_all_its_runners_needs_no_table():
    results, runs = lay_out(record("v1"), record("v2"))

    assert not is_telling(view_coverage(results, runs))


def test_terminal_and_page_show_it():
    results, runs = lay_out(record("v1"), record("v2", workload="patch", live="v1"))
    outcome = conclude(results)

    assert build_view(results, runs, outcome, {}).coverage == view_coverage(results, runs)
    assert "Which runner really ran" in render_html(results, runs, outcome, {})
    assert "never ran" in to_text(summary(outcome, results, runs))
    assert "never ran" not in to_text(summary(outcome, results))
