"""From a matrix to a plan: selection, shards, models, faults."""

from collections import Counter

import pytest

from harness.cells import plan_matrix, target_cases
from harness.core import ModelNotFoundError, UsageError
from harness.settings import load_matrix, parse_selection

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
    return [p.case.anchor for p in plan.cases if p.case.role in ("case", "runner", "release")]


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


ENGINES = """\
engines:
  - {name: vllm, release: "0.28.0", python: /b/python}
  - {name: reference}
  - {name: vllm, release: "0.26.0", python: /a/python}
"""


@pytest.fixture
def several(tmp_path):
    """Three engines; the embedded one has no server, so that it must skip two cells."""
    path = tmp_path / "several.yaml"
    path.write_text(ENGINES + TEXT + "  server: [false, true]\n")
    return load_matrix(path)


def places(cells):
    return list(dict.fromkeys((c.target.engine, c.target.release) for c in cells))


def test_each_engine_is_planned_apart_in_the_order_of_the_releases(several):
    plan = plan_matrix(several)

    wanted = [("vllm", "0.28.0"), ("reference", ""), ("vllm", "0.26.0")]
    assert wanted == places(p.case for p in plan.cases)
    for engine, release in wanted:
        mine = [
            p.case
            for p in plan.cases
            if (engine, release) == places([p.case])[0] and p.case.role != "release"
        ]
        assert 1 == [c.role for c in mine].count("control")
        assert {"null", "runner", "control", "case"} == {c.role for c in mine}
        assert all(places([c]) == [(c.baseline.engine, c.baseline.release)] for c in mine)
    skipped = [s.case.target for s in plan.unsupported]
    assert {("reference", True)} == {(s.engine, s.server) for s in skipped}


@pytest.mark.parametrize("num", [1, 2, 5, 12])
def test_shards_cover_every_cell_of_every_engine_exactly_once(several, num):
    def ids(plan):
        skipped = [s.case.anchor for s in plan.unsupported if s.case.role == "case"]
        return cells(plan) + skipped

    whole = Counter(ids(plan_matrix(several)))
    shards = [ids(plan_matrix(several, shard=(i + 1, num))) for i in range(num)]

    assert 3 * 12 + 3 + 4 == len(whole)
    assert whole == Counter(cell for shard in shards for cell in shard)


def test_a_cell_is_selected_by_its_release(several):
    keep = parse_selection("0.28 and v2 and uva-gb1- and server")

    assert ["tiny-llama/v2-uva-gb1-pin1-eager-server@vllm-0.28.0"] == cells(
        plan_matrix(several, select=keep)
    )


RELEASES = """\
engines:
  - {name: vllm, release: a}
  - {name: vllm, release: b}
"""


@pytest.fixture
def releases(tmp_path):
    """Two labels on the harness's own interpreter; nothing is launched here."""
    path = tmp_path / "releases.yaml"
    path.write_text(RELEASES + TEXT)
    return load_matrix(path)


def pairs_in(plan):
    return [p.case for p in plan.cases if p.case.role == "release"]


def test_each_runner_has_one_pair_of_releases(releases):
    pairs = pairs_in(plan_matrix(releases))

    assert [("v1", "a", "b"), ("v2", "a", "b")] == [
        (c.target.runner, c.baseline.release, c.target.release) for c in pairs
    ]
    assert all(c.target.is_baseline and c.baseline.is_baseline for c in pairs)


@pytest.mark.parametrize("num", [1, 2, 3, 5, 16, 20])
def test_shards_run_each_pair_of_releases_once_overall(releases, num):
    whole = Counter(c.case_id for c in pairs_in(plan_matrix(releases)))
    shards = [plan_matrix(releases, shard=(i + 1, num)) for i in range(num)]

    assert whole == Counter(c.case_id for plan in shards for c in pairs_in(plan))
    assert 16 == sum(len(cells(plan)) for plan in shards)


def test_a_pair_of_releases_alone_has_the_guards_of_both(releases):
    plan = plan_matrix(releases, select=lambda anchor, _: "release-v2" in anchor)

    assert 1 == len(cells(plan))
    nulls = [p.case.target for p in plan.cases if p.case.role == "null"]
    assert {("v2", "a"), ("v2", "b")} == {(s.runner, s.release) for s in nulls}
    controls = [p.case.target.release for p in plan.cases if p.case.role == "control"]
    assert ["a", "b"] == controls


def test_a_pair_is_planned_without_guards_where_they_are_off(releases):
    def select(anchor, _axes):
        return "release-v2" in anchor

    assert ["release"] == [
        p.case.role for p in plan_matrix(releases, select=select, controls=False).cases
    ]


def test_pairs_add_no_null_case_where_cells_have_them_already(releases):
    nulls = Counter(p.case.case_id for p in plan_matrix(releases).cases if p.case.role == "null")

    assert {1} == set(nulls.values())
    assert 4 == len(nulls)


def test_one_release_has_nothing_to_be_compared_with(matrix):
    assert [] == pairs_in(plan_matrix(matrix))


@pytest.mark.parametrize("num", [2, 5, 9, 20])
def test_shards_tell_each_skipped_cell_once_overall(tmp_path, num):
    path = tmp_path / "m.yaml"
    path.write_text(RELEASES.replace("vllm", "reference") + TEXT + "  server: [true]\n")
    matrix = load_matrix(path)

    def skipped(**options):
        return Counter(s.case.case_id for s in plan_matrix(matrix, **options).unsupported)

    whole = skipped()
    assert {1} == set(whole.values())
    assert 12 + 2 + 2 == len(whole)
    assert whole == sum((skipped(shard=(i + 1, num)) for i in range(num)), Counter())


def test_a_pair_that_the_engine_cannot_run_is_told_apart(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(RELEASES.replace("vllm", "reference") + TEXT + "  server: [true]\n")
    plan = plan_matrix(load_matrix(path))

    assert [] == pairs_in(plan)
    skipped = [s for s in plan.unsupported if s.case.role == "release"]
    assert 2 == len(skipped)
    assert {"engine 'reference' does not support server: the embedded engine is no server"} == {
        s.reason for s in skipped
    }


def test_each_workload_of_a_matrix_is_planned_and_told_apart_by_its_name(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text(
        "models: [tiny-llama]\nworkload: [generates, reload-same]\n"
        "axes: {runner: [v1], offload: [{cpu_offload_gb: 1}]}\n"
    )
    cases = list(target_cases(plan_matrix(load_matrix(file))))
    assert [case.workload.name for case in cases] == ["generates", "reload-same"]
    assert len({case.anchor for case in cases}) == 2
    assert all(f"/{case.workload.name}/" in case.anchor for case in cases)
    (one,) = target_cases(plan_matrix(load_matrix(file), select=parse_selection("reload-same")))
    assert one.workload.name == "reload-same"
