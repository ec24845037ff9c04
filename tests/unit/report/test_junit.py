"""JUnit: verdicts map to elements, axes to properties, controls to a suite of their own."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from harness.core import Verdict, Waive
from harness.report import render_junit

from .sample_session import build_sample


@pytest.fixture(scope="module")
def mixed():
    return build_sample(models=("tiny-llama",))


@pytest.fixture(scope="module")
def root(mixed):
    return ET.fromstring(render_junit(*mixed.args).split("\n", 1)[1])


def testcases(root, verdict):
    def wanted(case):
        return case.find(f"properties/property[@name='verdict'][@value='{verdict}']") is not None

    return [case for case in root[0].iter("testcase") if wanted(case)]


testcases.__test__ = False


@pytest.mark.parametrize(
    ("verdict", "tag", "kind"),
    [
        ("FAIL", "failure", "FAIL"),
        ("VACUOUS", "failure", "VACUOUS"),
        ("ERROR", "error", "ERROR"),
        ("UNSUPPORTED", "skipped", "UNSUPPORTED"),
    ],
)
def test_verdict_becomes_its_element(root, verdict, tag, kind):
    found = testcases(root, verdict)
    assert found
    assert all(case.find(tag).get("type") == kind for case in found)
    assert all(case.find(tag).get("message") for case in found)


def test_pass_has_no_outcome_element(root):
    for case in testcases(root, "PASS"):
        assert [child.tag for child in case] == ["properties"]


def test_counts_add_up(mixed, root):
    for suite in root:
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
    assert int(root.get("tests")) == len(mixed.results)
    assert (
        int(root.get("failures")) == mixed.outcome.counts["FAIL"] + mixed.outcome.counts["VACUOUS"]
    )


def test_axes_are_properties(root):
    case = testcases(root, "FAIL")[0]
    found = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (found["runner"], found["backend"], found["pin"]) == ("v2", "prefetch", "on")


def test_a_control_that_failed_as_planned_is_no_failure(root):
    assert root[1].get("name").endswith(".controls")
    assert root[1].get("failures") == "0"


@pytest.mark.parametrize("downgraded", [True, False])
def test_downgraded_verdicts_are_a_property_of_the_session(mixed, downgraded):
    outcome = replace(mixed.outcome, downgraded=downgraded)
    found = ET.fromstring(render_junit(mixed.results, {}, outcome, {}))
    properties = {p.get("name"): p.get("value") for p in found[0].find("properties")}
    assert properties["downgraded"] == str(downgraded).lower()
    assert "not_exact" not in properties


def test_releases_whose_null_run_is_not_exact_are_a_property_of_the_session(mixed):
    outcome = replace(mixed.outcome, downgraded=True, not_exact=("vllm 0.28", "reference"))
    found = ET.fromstring(render_junit(mixed.results, {}, outcome, {}))
    properties = {p.get("name"): p.get("value") for p in found[0].find("properties")}
    assert properties["not_exact"] == "vllm 0.28, reference"


def test_a_control_that_passed_is_a_failure(mixed):
    control = next(r for r in mixed.results if r.case.role == "control")
    text = render_junit([replace(control, verdict=Verdict.PASS)], {}, mixed.outcome, {})
    assert 'type="CONTROL"' in text


def test_control_characters_do_not_break_the_document(mixed):
    result = replace(mixed.results[1], command="a\x00b\x1b[31m</failure>\ud800")
    bad = replace(result, verdict=Verdict.VACUOUS, findings=())
    root = ET.fromstring(render_junit([bad], {}, mixed.outcome, {}).split("\n", 1)[1])
    assert "a\ufffdb" in root.find(".//failure").text


def test_a_waived_cell_is_skipped_with_its_reason_and_its_finding(mixed):
    waive = Waive(cell="uva", verdict="FAIL", reason="a known defect", expires="2099-01-01")
    results = [
        replace(r, case=replace(r.case, waive=waive)) if r.verdict is Verdict.FAIL else r
        for r in mixed.results
    ]
    root = ET.fromstring(render_junit(results, *mixed.args[1:]).split("\n", 1)[1])
    counted = [c for c in testcases(root, "FAIL") if c.find("skipped") is not None]
    assert counted
    for case in counted:
        assert case.find("failure") is None
        assert case.find("skipped").get("type") == "WAIVED"
        assert case.find("skipped").get("message").startswith("waived until 2099-01-01: a known")
