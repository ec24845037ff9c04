"""From a matrix to a plan: selection, shards, models, faults."""

from collections import Counter

import pytest

from harness.cells import plan_matrix, target_cases
from harness.core import ModelNotFoundError, UsageError
from harness.settings import load_matrix

MODELS = ["tiny-llama", "seeded-qwen3", "seeded-llama-tied"]
TEXT = """\
models: [tiny-llama]
workload: short
axes:
  offload: [{cpu_offload_gb: 1}, {cpu_offload_gb: 0.001}, {offload_group_size: 2}]
  runner: [v1, v2]
"""


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(TEXT)
    return load_matrix(path)


def cells(plan):
    return [p.case.anchor for p in plan.cases if p.case.role in ("case", "runner")]


@pytest.mark.parametrize("num", [1, 2, 3, 5, 17, 18, 24])
def test_shards_cover_every_cell_of_every_model_exactly_once(matrix, num):
    whole = Counter(cells(plan_matrix(matrix, models=MODELS)))
    shards = [cells(plan_matrix(matrix, models=MODELS, shard=(i + 1, num))) for i in range(num)]

    assert 21 == len(whole)  # six targets and one runner cell a model
    assert whole == Counter(cell for shard in shards for cell in shard)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_shards_are_dealt_after_selection(matrix):
    def select(anchor, _axes):
        return "uva" in anchor

    parts = [cells(plan_matrix(matrix, select=select, shard=(i, 2))) for i in (1, 2)]

    assert cells(plan_matrix(matrix, select=select)) == [
        cell for pair in zip(*parts, strict=True) for cell in pair
    ]


def test_every_shard_has_its_own_controls(matrix):
    for index in (1, 2, 3):
        roles = Counter(p.case.role for p in plan_matrix(matrix, shard=(index, 3)).cases)
        assert roles["control"] == 1
        assert roles["null"] >= 1


def test_an_empty_shard_plans_nothing(matrix):
    plan = plan_matrix(matrix, shard=(8, 8))

    assert ((), ()) == (plan.cases, plan.unsupported)


def test_selection_sees_anchor_and_axes(matrix):
    seen = []
    plan_matrix(matrix, select=lambda anchor, axes: seen.append((anchor, dict(axes))))

    assert 7 == len(seen)
    assert all(axes["runner"] in anchor for anchor, axes in seen)


def test_faults_are_planted_in_targets_only(matrix):
    plan = plan_matrix(matrix, faults=["host-copy-damaged"])

    for planned in plan.cases:
        wanted = {"case": ("host-copy-damaged",), "control": ("host-copy-damaged",)}
        assert wanted.get(planned.case.role, ()) == planned.case.target.faults
        assert () == planned.case.baseline.faults


def test_a_cell_that_a_fault_does_not_apply_to_stays_a_plain_one(matrix):
    plain = cells(plan_matrix(matrix))
    faulty = cells(plan_matrix(matrix, faults=["offloader-not-installed"]))

    name = "!offloader-not-installed"
    assert faulty == [anchor + name * ("/v2-" in anchor) for anchor in plain]


def test_a_fault_that_applies_to_no_selected_cell_is_refused_with_the_reason(matrix):
    with pytest.raises(UsageError, match="pin_memory is left on") as caught:
        plan_matrix(matrix, faults=["pin-flag-ignored"])
    assert "none of the 6 selected cells" in str(caught.value)
    with pytest.raises(UsageError, match="runner v1 is not one of v2"):
        plan_matrix(
            matrix,
            faults=["offloader-not-installed"],
            select=lambda _, axes: axes["runner"] == "v1",
        )


def test_unknown_fault_and_model_are_refused_before_anything_runs(matrix):
    with pytest.raises(UsageError, match="Did you mean 'pin-flag-ignored'"):
        plan_matrix(matrix, faults=["pin-flag-ignore"])
    with pytest.raises(ModelNotFoundError, match="no-such"):
        plan_matrix(matrix, models=["no-such"])


def test_target_cases_leave_the_controls_out(matrix):
    roles = {c.role for c in target_cases(plan_matrix(matrix))}

    assert {"case", "runner"} == roles
