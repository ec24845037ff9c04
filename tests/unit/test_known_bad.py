"""A matrix's known-bad cells: controls that must FAIL, refused where they never could."""

import pytest

from harness.cells import plan_matrix, target_cases
from harness.core import MatrixError, UsageError
from harness.settings import load_matrix

TEXT = """\
models: [tiny-llama]
workload: short
axes:
  runner: [v1]
  offload: [{offload_group_size: 2, offload_prefetch_step: 3}]
known_bad:
  - {runner: v1, offload: {offload_group_size: 2, offload_prefetch_step: 3}, ENTRY}
"""


@pytest.fixture
def plan(tmp_path):
    def make(entry, **options):
        path = tmp_path / "m.yaml"
        path.write_text(TEXT.replace("ENTRY", entry))
        return plan_matrix(load_matrix(path), **options)

    return make


def bad_cells(plan):
    return [
        p.case
        for p in plan.cases
        if p.case.role == "control" and p.case.target.faults != ("host-copy-damaged",)
    ]


def test_a_known_bad_cell_is_a_control_that_its_faults_judges_must_catch(plan):
    planned = plan("faults: [wrong-refill-target]")
    (bad,) = bad_cells(planned)
    assert bad.must_fail == ("placement", "integrity", "tokens")
    assert "/control-" in bad.anchor
    assert len(list(target_cases(planned))) == 1


def test_judges_that_are_named_are_the_ones_that_must(plan):
    (bad,) = bad_cells(plan("faults: [no-wait-for-copy], must_fail: [ordering]"))
    assert bad.must_fail == ("ordering",)


def test_its_own_baseline_needs_no_null_case(plan):
    """With other recorders it has a baseline of its own, which no cell is compared with."""
    planned = plan("instruments: [integrity], faults: [wrong-refill-target]")
    nulls = [p.case.baseline.instruments for p in planned.cases if p.case.role == "null"]
    assert nulls == [("ordering", "integrity")]


def test_without_controls_there_is_none(plan):
    assert not bad_cells(plan("faults: [wrong-refill-target]", controls=False))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("faults: [offloader-not-installed]", "runner v1 is not one of v2"),
        ("faults: [wrong-refill-target], must_fail: [tokns]", "'tokns' is no judge; known: effect"),
        ("faults: [synchronous-copy]", "can never FAIL"),
        ("faults: [other-layers-same-bytes]", "can never FAIL"),
        ("faults: [no-wait-for-reader], instruments: []", "can never FAIL"),
        ("faults: [wrong-refil-target]", "Did you mean 'wrong-refill-target'"),
    ],
)
def test_what_could_never_fail_is_refused_before_anything_runs(plan, entry, words):
    with pytest.raises(UsageError, match=words):
        plan(entry)


def test_an_entry_without_a_fault_is_refused_with_its_place(plan):
    with pytest.raises(MatrixError, match=r"m\.yaml:7:\d+: a known_bad entry needs faults"):
        plan("multiprocessing: false")


def controls_of(plan):
    return [p.case for p in plan.cases if p.case.role == "control"]


def test_a_cell_that_is_the_planted_control_itself_is_joined_with_it(plan):
    """The harness plants host-copy-damaged by itself, in this very setting."""
    (one,) = controls_of(plan("faults: [host-copy-damaged], must_fail: [memory]"))

    assert one.must_fail == ("tokens", "integrity", "memory")


def test_a_cell_that_only_looks_like_the_planted_control_is_told_apart(plan):
    """Its id does not show that it records nothing."""
    entry = "faults: [host-copy-damaged], instruments: [], must_fail: [tokens]"
    first, second = controls_of(plan(entry))

    assert first.target.setting_id == second.target.setting_id
    assert first.case_id != second.case_id
    assert first.anchor != second.anchor
    assert second.anchor.startswith(first.anchor + "~")
    assert [(), ("ordering", "integrity")] == sorted(
        case.target.instruments for case in (first, second)
    )


def test_one_cell_written_twice_must_fail_by_all_the_judges_named(tmp_path):
    entry = "faults: [no-wait-for-copy], must_fail: [ordering]"
    text = TEXT.replace("ENTRY", entry)
    last = text.splitlines()[-1].replace("[ordering]", "[integrity]")
    (tmp_path / "m.yaml").write_text(text + last + "\n")

    (bad,) = bad_cells(plan_matrix(load_matrix(tmp_path / "m.yaml")))

    assert bad.must_fail == ("ordering", "integrity")
