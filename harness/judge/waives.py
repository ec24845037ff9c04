"""A waive that says more than it may: of a cell that passes, or past its end."""

from __future__ import annotations

import datetime as dt

from harness.core import Case, Finding, Verdict, fold

from .base import finding

JUDGE = "waive"


def check_waive(case: Case, findings: tuple[Finding, ...], today: dt.date) -> tuple[Finding, ...]:
    """An ERROR where a case passes although it is waived, or its waive has expired; else nothing.

    Args:
        case: which may carry a waive.
        findings: every judge's word on it.
        today: up to and with its `expires` a waive holds.
    """
    waive, verdict = case.waive, fold(findings)
    if waive is None:
        return ()
    if verdict is Verdict.PASS:
        text = f"the waive {waive.cell!r} ({waive.reason}) is no longer needed: this cell passes"
    elif verdict.value == waive.verdict and today > dt.date.fromisoformat(waive.expires):
        text = f"the waive {waive.cell!r} ({waive.reason}) expired on {waive.expires}"
    else:
        return ()
    cause = text.partition(": this cell")[0]
    return (finding(JUDGE, Verdict.ERROR, text, {"link": waive.link}, cause=cause),)
