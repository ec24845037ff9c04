"""The terminal says the same as the page, and never reads markup out of a record."""

from dataclasses import replace

import pytest
from rich.console import Console

from harness.core import Verdict
from harness.report import case_line, explain, summary

from .sample_session import build_sample


@pytest.fixture(scope="module")
def mixed():
    return build_sample(models=("tiny-llama",))


def shown(renderable, width=160, **options):
    console = Console(width=width, force_terminal=False, no_color=True, record=False, file=None)
    with console.capture() as capture:
        console.print(renderable, **options)
    return capture.get()


def find(sample, verdict, role="case"):
    return next(r for r in sample.results if r.verdict.value == verdict and r.case.role == role)


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "VACUOUS", "UNSUPPORTED", "ERROR"])
def test_case_line_is_one_line_with_mark_verdict_and_anchor(mixed, verdict):
    result = find(mixed, verdict)
    text = shown(case_line(result), width=80, no_wrap=True, overflow="ellipsis")
    assert text.count("\n") == 1
    assert verdict in text
    assert result.case.anchor in text


def test_case_line_of_a_control_says_that_it_behaved(mixed):
    assert "planted fault caught" in shown(case_line(find(mixed, "FAIL", "control")))
    assert "null run exact" in shown(case_line(find(mixed, "PASS", "null")))


def test_summary_gives_the_sentence_first_then_counts_then_what_did_not_pass(mixed):
    text = shown(summary(mixed.outcome, mixed.results))
    assert text.startswith(mixed.outcome.sentence[:60])
    assert "∅ VACUOUS" in text
    assert text.count("✕ FAIL ") >= mixed.outcome.counts["FAIL"]
    assert "3 controls behaved" in text


def test_summary_says_that_verdicts_are_downgraded(mixed):
    text = "EXACT verdicts are downgraded"
    assert text in shown(summary(replace(mixed.outcome, downgraded=True), mixed.results))
    assert text not in shown(summary(mixed.outcome, mixed.results))


def test_summary_names_a_control_that_misbehaved(mixed):
    control = replace(find(mixed, "FAIL", "control"), verdict=Verdict.PASS)
    text = shown(summary(mixed.outcome, [control]))
    assert f"control misbehaved: {control.case.anchor}" in text


def test_explain_shows_proofs_tokens_and_the_command(mixed):
    result = find(mixed, "FAIL")
    text = shown(explain(result, mixed.runs))
    for part in ("✓ took effect", "✕ output differs", "prompt 2 differs first", result.command):
        assert part in text
    assert text.index("took effect") < text.index("output differs") < text.index("Output:")


def test_explain_works_without_runs(mixed):
    assert "FAIL" in shown(explain(find(mixed, "FAIL"), {}))


def test_explain_shows_the_log_of_a_crash(mixed):
    assert "copy stream is gone" in shown(explain(find(mixed, "ERROR"), mixed.runs))


def test_square_brackets_in_a_record_are_text_not_markup(mixed):
    result = replace(find(mixed, "PASS"), command="[bold]x[/bold] [/]")
    assert "[bold]x[/bold] [/]" in shown(explain(result, mixed.runs))


def test_what_is_offloaded_is_told_of_all_ranks_together(mixed):
    result = find(mixed, "PASS")
    case = replace(result.case, expected_ranks=(result.case.expected,) * 3)
    alone, spread = (shown(case_line(r)) for r in (result, replace(result, case=case)))

    def mebibytes(text):
        return float(text.partition(" MiB offloaded")[0].split()[-1])

    assert 4 * mebibytes(alone) == pytest.approx(mebibytes(spread), rel=0.05)
