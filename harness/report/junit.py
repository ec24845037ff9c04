"""JUnit XML: a testcase for each case, its axes as properties, controls in a suite apart."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence

from harness.core import CaseResult, ExitCode, Json, Outcome, Run, Verdict

from .cell import lead_sentence
from .history import histories
from .labels import filter_axes
from .words import EMULATION, is_emulation

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters no XML 1.0 document may hold."""


def render_junit(
    results: Sequence[CaseResult],
    runs: Mapping[str, Run],
    outcome: Outcome,
    manifest: Mapping[str, Json],
) -> str:
    """Render JUnit XML.

    FAIL becomes a failure, VACUOUS a failure of type VACUOUS, ERROR an error, UNSUPPORTED skipped
    with its reason. A control that behaved passes, whatever its verdict; one that did not is a
    failure of type CONTROL. A session that did not pass although no case says why (it was cut
    short, shards are missing, nothing was compared) has an error of its own, of type SESSION.

    Returns:
        The document, with its XML declaration.
    """
    root = ET.Element("testsuites", name="harness")
    session = str(manifest.get("session_id") or (results[0].session_id if results else "session"))
    counting = [r for r in results if r.counts]
    controls = [r for r in results if not r.counts]
    suites = [(session, counting)] + ([(f"{session}.controls", controls)] if controls else [])
    said = histories(results)
    for name, members in suites:
        root.append(_suite(name, members, runs, said))
    if outcome.exit_code not in (ExitCode.PASS, ExitCode.UNSUPPORTED) and not _is_red(root):
        root.append(_session_suite(session, outcome))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", f"{sum(r.duration_s for r in results):.3f}")
    properties = ET.Element("properties")
    _property(properties, "exit_code", str(outcome.exit_code))
    _property(properties, "sentence", outcome.sentence)
    _property(properties, "downgraded", str(outcome.downgraded).lower())
    if outcome.not_exact:
        _property(properties, "not_exact", ", ".join(outcome.not_exact))
    root[0].insert(0, properties)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(
    name: str,
    results: Sequence[CaseResult],
    runs: Mapping[str, Run],
    said: Mapping[str, str],
) -> ET.Element:
    suite = ET.Element("testsuite", name=_clean(name), tests=str(len(results)))
    for result in results:
        suite.append(_testcase(result, runs, said.get(result.case.case_id, "")))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(1 for case in suite if case.find(tag) is not None)))
    suite.set("time", f"{sum(r.duration_s for r in results):.3f}")
    if results:
        suite.set("timestamp", min(r.started_at for r in results))
    return suite


def _is_red(root: ET.Element) -> bool:
    return any(next(root.iter(tag), None) is not None for tag in ("failure", "error"))


def _session_suite(session: str, outcome: Outcome) -> ET.Element:
    """A suite of one testcase that carries the session's own outcome."""
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0.000"}
    suite = ET.Element("testsuite", {"name": _clean(f"{session}.session"), **counts})
    case = ET.SubElement(suite, "testcase", classname="harness.session", name="is complete")
    ET.SubElement(case, "error", type="SESSION", message=_clean(outcome.sentence))
    return suite


def _testcase(result: CaseResult, runs: Mapping[str, Run], history: str) -> ET.Element:
    model = result.case.workload.model.name
    case = ET.Element("testcase", classname=_clean(f"harness.{model}"))
    case.set("name", _clean(result.case.anchor.removeprefix(f"{model}/")))
    case.set("time", f"{result.duration_s:.3f}")
    properties = ET.SubElement(case, "properties")
    axes = {**filter_axes(result.case.target, model), **result.case.axes}
    facts = {"case_id": result.case.case_id, "verdict": result.verdict.value}
    facts |= {"history": history} if history else {}
    if is_emulation(result.case.target.engine):
        facts["emulation"] = EMULATION
    for key, value in {**facts, **axes, "role": result.case.role}.items():
        _property(properties, key, value)
    if (outcome := _outcome(result)) is not None:
        outcome.text = _clean(_details(result))
        case.append(outcome)
        if log := _log(result, runs):
            ET.SubElement(case, "system-err").text = _clean(log)
    return case


def _outcome(result: CaseResult) -> ET.Element | None:
    """The element that says why a testcase is not a pass; None for a pass."""
    message = _clean(lead_sentence(result))
    if not result.counts:
        kind = None if result.behaved else ("failure", "CONTROL")
        message = f"control misbehaved ({result.verdict.value}): {message}"
    elif result.is_waived and result.case.waive:
        waive = result.case.waive
        kind = ("skipped", "WAIVED")
        message = _clean(f"waived until {waive.expires}: {waive.reason}: ") + message
    else:
        kind = {
            Verdict.FAIL: ("failure", "FAIL"),
            Verdict.VACUOUS: ("failure", "VACUOUS"),
            Verdict.ERROR: ("error", "ERROR"),
            Verdict.UNSUPPORTED: ("skipped", "UNSUPPORTED"),
        }.get(result.verdict)
    if kind is None:
        return None
    return ET.Element(kind[0], type=kind[1], message=message)


def _details(result: CaseResult) -> str:
    lines = [f"{f.judge}: {f.verdict.value}: {f.summary}" for f in result.findings]
    return "\n".join([*lines, f"run it again: {result.command}"])


def _log(result: CaseResult, runs: Mapping[str, Run]) -> str:
    ids = dict.fromkeys((result.baseline_run_id, result.target_run_id))
    found = [runs[i] for i in ids if i is not None and i in runs]
    return "\n".join(line for run in found for line in run.log_tail)


def _property(parent: ET.Element, name: str, value: str) -> None:
    ET.SubElement(parent, "property", name=_clean(name), value=_clean(value))


def _clean(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
