"""Two sessions of the same cells say the same."""

import pytest

from harness.cells import plan_matrix
from harness.pipeline import Options, Session
from harness.settings import load_matrix


@pytest.fixture
def run_twice(tmp_path, small_matrix):
    """Findings by case id of two sessions; the second with twice the launches at once."""
    plan = plan_matrix(
        load_matrix(small_matrix), select=lambda anchor, _axes: "uva" in anchor, controls=True
    )
    sessions = []
    for name, jobs in (("a", 1), ("b", 2)):
        with Session(tmp_path / name, options=Options(jobs=jobs)) as session:
            session.run_plan(plan)
        sessions.append({r.case.case_id: r for r in session.results})
    return sessions


def test_findings_are_equal(run_twice):
    first, second = run_twice

    assert first.keys() == second.keys()
    assert 2 == sum(r.case.role == "case" for r in first.values())
    for case_id, result in first.items():
        assert result.findings == second[case_id].findings
        assert result.verdict is second[case_id].verdict
