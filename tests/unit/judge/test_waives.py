"""A waive holds for the verdict it names until its day, and for nothing else."""

import datetime as dt
from dataclasses import replace

import pytest

from harness.core import ExitCode, Finding, Verdict, Waive, fold
from harness.judge import check_waive, conclude
from tests import builders

TODAY = dt.date(2027, 6, 30)
WAIVE = Waive(cell="prefetch", verdict="FAIL", reason="a known defect", expires="2027-06-30")


def result(verdict, *, waive=WAIVE, today=TODAY, role="case"):
    """A result of that verdict after its waive was looked at."""
    case = replace(builders.build_case(), waive=waive, role=role)
    findings = (Finding(judge="tokens", verdict=verdict, summary="a word"),)
    findings += check_waive(case, findings, today)
    made = builders.build_result(case=case, findings=findings)
    return replace(made, case=case, findings=findings, verdict=fold(findings))


def test_the_named_verdict_is_waived_up_to_the_last_day():
    assert result(Verdict.FAIL).is_waived
    late = result(Verdict.FAIL, today=dt.date(2027, 7, 1))
    assert not late.is_waived
    assert late.verdict is Verdict.ERROR
    assert "expired on 2027-06-30" in late.lead.summary


def test_a_waive_of_some_judges_holds_while_no_other_objects():
    assert result(Verdict.FAIL, waive=replace(WAIVE, judges=("tokens", "effect"))).is_waived
    assert not result(Verdict.FAIL, waive=replace(WAIVE, judges=("effect",))).is_waived


def test_an_expired_waive_of_an_error_is_an_error():
    late = result(Verdict.ERROR, waive=replace(WAIVE, verdict="ERROR"), today=dt.date(2027, 7, 1))
    assert not late.is_waived
    assert late.verdict is Verdict.ERROR


def test_a_waived_cell_that_passes_is_an_error():
    found = result(Verdict.PASS)
    assert found.verdict is Verdict.ERROR
    assert not found.is_waived
    assert "no longer needed" in found.lead.summary


@pytest.mark.parametrize("verdict", [Verdict.VACUOUS, Verdict.ERROR, Verdict.UNSUPPORTED])
def test_another_verdict_than_the_named_one_is_judged_as_ever(verdict):
    found = result(verdict)
    assert found.verdict is verdict
    assert not found.is_waived


def test_a_control_is_never_waived():
    assert not result(Verdict.FAIL, role="control").is_waived


def test_a_session_passes_with_waived_cells_and_says_how_many_and_why():
    good = result(Verdict.PASS, waive=None)
    outcome = conclude([good, result(Verdict.FAIL), result(Verdict.FAIL)], controls=False)
    assert outcome.exit_code == ExitCode.PASS
    assert outcome.sentence.endswith("2 cells are waived: a known defect.")
    assert (outcome.counts["FAIL"], outcome.counts["PASS"]) == (2, 1)


def test_a_cell_that_is_not_waived_still_decides():
    bad = result(Verdict.FAIL, waive=None)
    outcome = conclude([bad, result(Verdict.FAIL)], controls=False)
    assert outcome.exit_code == ExitCode.FAIL
    assert "1 cell is waived" in outcome.sentence


def test_a_session_of_waived_cells_alone_is_red_as_known():
    outcome = conclude([result(Verdict.FAIL)], controls=False)
    assert outcome.exit_code == ExitCode.PASS
    assert outcome.sentence == "Every cell is red as known. 1 cell is waived: a known defect."
