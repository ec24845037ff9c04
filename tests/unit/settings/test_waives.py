"""The `waives:` of a matrix file."""

import pytest

from harness.cells import plan_matrix
from harness.core import MatrixError, UsageError, Waive
from harness.settings import load_matrix

HEAD = """models: [tiny-llama]
workload: short
axes:
  runner: [v1, v2]
  offload: [{cpu_offload_gb: 1}, {offload_group_size: 1}]
waives:
"""
ENTRY = "  - {cell: v1 and prefetch, verdict: FAIL, reason: known, expires: 2027-06-30}\n"


@pytest.fixture
def load(tmp_path):
    def read(text):
        file = tmp_path / "m.yaml"
        file.write_text(HEAD + text)
        return load_matrix(file)

    return read


def test_a_waive_is_read_with_its_date_as_text(load):
    assert load(ENTRY).waives == (
        Waive(cell="v1 and prefetch", verdict="FAIL", reason="known", expires="2027-06-30"),
    )


def test_a_waive_may_name_the_judges_that_may_object(load):
    text = "  - {cell: v1, verdict: FAIL, judges: [effect], reason: x, expires: 2027-06-30}\n"
    (waive,) = load(text).waives

    assert ("effect",) == waive.judges


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  - {cell: v1, verdict: FAIL, reason: x}\n", "m.yaml:7:5: a waive needs expires"),
        ("  - {cell: v1, reason: x, expires: 2027-06-30}\n", "a waive needs verdict"),
        ("  - {cell: v1, verdict: PASS, reason: x, expires: 2027-06-30}\n", "expected one of FAIL"),
        ("  - {cell: v1, verdict: FAIL, reason: x, expires: soon}\n", "expected a date"),
        (
            "  - {cell: v1, verdict: FAIL, reason: x, expires: 2027-13-01}\n",
            "'2027-13-01' is no value: month must be in 1..12; quote it if it is text",
        ),
        ("  - {cell: v1 and, verdict: FAIL, reason: x, expires: 2027-06-30}\n", "m.yaml:7:12"),
        (
            "  - {cell: v1, verdict: FAIL, judges: [tokn], reason: x, expires: 2027-06-30}\n",
            "expected one of effect",
        ),
        ("  - {cel: v1, verdict: FAIL, reason: x, expires: 2027-06-30}\n", "Did you mean 'cell'"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(load, text, message):
    with pytest.raises(MatrixError, match=message.replace(".", r"\.")):
        load(text)


def test_a_waive_is_on_the_cells_it_matches_and_on_no_control(load):
    plan = plan_matrix(load(ENTRY))
    waived = [p.case.anchor for p in plan.cases if p.case.waive]
    assert len(waived) == 1
    assert "v1-prefetch" in waived[0]


def test_a_waive_that_matches_no_cell_is_refused_and_one_that_is_not_selected_is_not(load):
    with pytest.raises(UsageError, match="'sleep'"):
        plan_matrix(load(ENTRY.replace("v1 and prefetch", "sleep")))
    plan = plan_matrix(load(ENTRY), select=lambda anchor, axes: "uva" in anchor)
    assert not any(p.case.waive for p in plan.cases)


def test_a_planted_fault_is_not_waived(load):
    plan = plan_matrix(load(ENTRY), faults=["host-copy-damaged"])
    assert not any(p.case.waive for p in plan.cases)
