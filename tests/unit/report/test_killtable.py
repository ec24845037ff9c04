"""The kill table on the page: what a session of faults shows in place of its failing cases."""

from dataclasses import replace

import pytest

from harness.core import encode
from harness.report import render_html
from harness.report.killtable import view_kill_table
from harness.report.view import build_view

from .sample_session import build_sample, conclude_sample

ROW = {
    "fault": "a",
    "runner": "v2",
    "mode": "prefetch",
    "schedule": "copy_late",
    "case_id": "c",
    "anchor": "x",
    "verdict": "FAIL",
    "objected": {"ordering": "it races"},
    "silent": ["tokens"],
    "plain_passes": True,
    "ended": "",
}
LINE = {
    "name": "no-wait",
    "kind": "mutant",
    "summary": "it does not wait <for> it",
    "seen_in": ["vllm#1"],
    "defect_class": "B",
    "killed_by": ["ordering"],
    "blind": "in order",
    "needs": "",
    "rows": [ROW],
    "is_right": True,
    "why": "",
}


def build_manifest(*lines, sentence="1 of 1 defects caught.", exit_code=0):
    outcome = replace(
        conclude_sample(build_sample().results), exit_code=exit_code, sentence=sentence
    )
    return {"kill_table": {"lines": list(lines), "outcome": encode(outcome)}}


def test_a_session_without_faults_has_no_table():
    sample = build_sample()
    results, runs = sample.results, sample.runs

    assert view_kill_table({}) is None
    page = render_html(results, runs, conclude_sample(results), {})
    assert "Which judge catches which defect" not in page


def test_the_sentence_is_the_tables_and_not_of_the_cases():
    sample = build_sample()
    results, runs = sample.results, sample.runs

    view = build_view(results, runs, conclude_sample(results), build_manifest(LINE))

    assert view.sentence == "1 of 1 defects caught."
    assert view.exit_code == 0
    assert view.exit_meaning == ""


def test_a_missed_defect_is_shown_beside_who_was_silent():
    view = view_kill_table(build_manifest(LINE))
    (section,) = view.sections
    (line,) = section.lines
    (row,) = line.rows

    assert (line.word, line.seen_in) == ("caught", "vllm#1")
    assert row.where == "v2 prefetch copy_late"
    assert dict(zip(view.judges, row.marks, strict=True)) == {
        "ordering": ("●", "objects", "it races"),
        "tokens": ("·", "silent", "says PASS"),
    }
    assert (row.plain, row.is_missed) == ("passes", True)


def test_runners_that_were_told_the_same_share_a_row():
    line = {**LINE, "rows": [ROW, {**ROW, "runner": "v1"}, {**ROW, "runner": "v3", "objected": {}}]}

    (section,) = view_kill_table(build_manifest(line)).sections

    assert [row.where for row in section.lines[0].rows] == [
        "v2 v1 prefetch copy_late",
        "v3 prefetch copy_late",
    ]


@pytest.mark.parametrize(
    ("kind", "word"),
    [("mutant", "survived"), ("equivalent", "not as it must be"), ("test", "let through")],
)
def test_what_is_wrong_is_called_so(kind, word):
    wrong = {**LINE, "kind": kind, "is_right": False, "why": "survives under v1"}

    (section,) = view_kill_table(build_manifest(wrong)).sections

    assert section.lines[0].word == word


def test_what_cannot_run_stands_apart():
    waiting = {**LINE, "needs": "reload step", "rows": [], "is_right": False}

    view = view_kill_table(build_manifest(LINE, waiting))

    assert view.waiting == (("no-wait", "reload step", LINE["summary"]),)
    assert sum(len(s.lines) for s in view.sections) == 1


def test_the_page_escapes_it():
    sample = build_sample()
    results, runs = sample.results, sample.runs

    page = render_html(results, runs, conclude_sample(results), build_manifest(LINE))

    assert "it does not wait &lt;for&gt; it" in page
