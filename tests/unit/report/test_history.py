"""Since when a cell is right or wrong, from its verdicts over the releases."""

import random
from dataclasses import replace

import pytest

from harness.core import Verdict
from harness.report.history import histories, say_change, say_history, say_since
from harness.report.order import order_releases

from .sample_session import build_releases, build_sample

RELEASES = ("0.26.0", "0.28.0", "0.32.0", "0.34.0")
LETTERS = {"P": "PASS", "F": "FAIL", "V": "VACUOUS", "U": "UNSUPPORTED", "E": "ERROR", "-": None}


def seen(letters):
    return [(release, LETTERS[c]) for release, c in zip(RELEASES, letters, strict=False)]


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("P", "right in 0.26.0"),
        ("F", "wrong in 0.26.0"),
        ("V", "not proven in 0.26.0"),
        ("PPP", "right since 0.26.0"),
        ("FFF", "wrong since 0.26.0"),
        ("VVV", "never proven"),
        ("UUU", "never offered"),
        ("EEE", "never known"),
        ("VUV", "never proven"),
        ("VPP", "right since 0.28.0"),
        ("VVP", "right since 0.32.0"),
        ("UVP", "right since 0.32.0"),
        ("PFF", "wrong since 0.28.0"),
        ("PFP", "wrong in 0.28.0, right again in 0.32.0"),
        ("PFPP", "wrong in 0.28.0, right again since 0.32.0"),
        ("PFFP", "wrong in 0.28.0 and 0.32.0, right again in 0.34.0"),
        ("FFFP", "wrong from 0.26.0 to 0.32.0, right since 0.34.0"),
        ("VFP", "wrong in 0.28.0, right since 0.32.0"),
        ("FPF", "right in 0.28.0, wrong again in 0.32.0"),
        ("PVP", "not proven in 0.28.0, right again in 0.32.0"),
        ("PVV", "not proven since 0.28.0"),
        ("FVV", "wrong in 0.26.0, not proven since 0.28.0"),
        ("PUU", "not offered since 0.28.0"),
        ("PPE", "not known since 0.32.0"),
        ("-PP", "right since 0.28.0 (0.26.0 not run)"),
        ("EPP", "right since 0.28.0 (0.26.0 not known)"),
        ("FEP", "wrong in 0.26.0, right since 0.32.0 (0.28.0 not known)"),
        ("P-P", "not run in 0.28.0, right again in 0.32.0"),
        ("PP-", "right since 0.26.0, not run since 0.32.0"),
        ("---", "not run"),
        ("", "not run"),
    ],
)
def test_since_tells_the_state_and_what_was_wrong_before_it(letters, words):
    assert say_since(seen(letters)) == words


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("P", ""),
        ("", ""),
        ("VPP", "VACUOUS since 0.26.0, PASS since 0.28.0"),
        ("PFP", "PASS since 0.26.0, FAIL since 0.28.0, PASS since 0.32.0"),
        ("-UU", "UNSUPPORTED since 0.28.0"),
        ("E-P", "ERROR since 0.26.0, not run since 0.28.0, PASS since 0.32.0"),
    ],
)
def test_history_names_each_change_of_verdict(letters, words):
    assert say_history(seen(letters)) == words


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("-PP", "same output"),
        ("-PF", "another output since 0.32.0"),
        ("-FPF", "another output in 0.28.0 and again in 0.34.0"),
        ("-EP", "ERROR since 0.28.0, PASS since 0.32.0"),
    ],
)
def test_a_release_against_the_one_before_tells_where_the_output_changed(letters, words):
    assert say_change(seen(letters)) == words


def test_each_cell_of_a_row_has_the_same_line():
    said = histories(build_releases().results)
    lines = {text for name, text in said.items() if "v2-prefetch-g2n1s3" in name}
    assert lines == {"VACUOUS since 0.26.0, FAIL since 0.28.0, PASS since 0.32.0"}


def test_guards_and_sessions_of_one_release_have_no_line():
    sample = build_releases()
    guards = {r.case.case_id for r in sample.results if not r.counts}
    assert not guards & set(histories(sample.results))
    assert histories(build_sample().results) == {}


def test_releases_come_in_the_order_they_were_compared_not_in_that_of_the_results():
    results = list(build_releases(releases=("B", "A", "0.9.0", "0.28.0")).results)
    random.Random(5).shuffle(results)
    assert order_releases(results) == {"vllm": ("B", "A", "0.9.0", "0.28.0")}


def test_releases_that_were_not_compared_come_by_number():
    results = [r for r in build_releases(releases=("0.28.0", "0.9.0")).results if r.counts]
    alone = [r for r in results if r.case.role == "case"]
    assert order_releases(alone) == {"vllm": ("0.9.0", "0.28.0")}


def test_the_worst_of_several_cells_of_one_release_decides():
    results = build_releases().results
    good = next(r for r in results if r.verdict.value == "PASS" and r.counts)
    bad = replace(good, verdict=Verdict.FAIL, case=replace(good.case, case_id="again"))
    said = histories([*results, bad])
    assert said["again"].startswith("FAIL since 0.26.0")
    assert said[good.case.case_id] == said["again"]
