"""CI jobs: every cell in exactly one shard, keys unique and legal, commands ready for a shell."""

import json
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import UsageError
from harness.report import Cell, buildkite_steps, github_matrix, shard_cells


def make_cells(num):
    return [
        Cell(
            anchor=f"tiny-llama/v{i % 2 + 1}-uva-gb{i}",
            axes={"runner": f"v{i % 2 + 1}"},
            command=f"harness run --cell {i}",
        )
        for i in range(num)
    ]


@given(num=st.integers(1, 60), shards=st.integers(1, 12))
def test_every_cell_is_in_exactly_one_shard(num, shards):
    cells = make_cells(num)
    parts = [shard_cells(cells, i, shards) for i in range(1, shards + 1)]
    assert sorted(c.anchor for p in parts for c in p) == sorted(c.anchor for c in cells)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_github_matrix_has_the_five_keys():
    matrix = github_matrix(make_cells(10), 3, timeout_minutes=20, args=("--matrix", "my file.yaml"))
    assert [job["shard"] for job in matrix["include"]] == ["1/3", "2/3", "3/3"]
    job = matrix["include"][0]
    assert sorted(job) == ["command", "key", "label", "shard", "timeout"]
    assert shlex.split(job["command"]) == [
        "harness", "run", "--shard", "1/3", "--matrix", "my file.yaml",
    ]  # fmt: skip
    assert job["timeout"] == 20
    assert job["label"] == "offload 1/3: 4 cells (v1, v2)"


def test_buildkite_steps_carry_the_same_jobs():
    steps = buildkite_steps(make_cells(10), shards=3, timeout_minutes=20)["steps"]
    jobs = github_matrix(make_cells(10), 3, timeout_minutes=20)["include"]
    assert [s["command"] for s in steps] == [j["command"] for j in jobs]
    assert [s["key"] for s in steps] == [j["key"] for j in jobs]
    assert all(s["timeout_in_minutes"] == 20 for s in steps)
    assert all(s["artifact_paths"] == ["reports/**/*"] for s in steps)


def test_keys_are_unique_and_legal():
    keys = [s["key"] for s in buildkite_steps(make_cells(9), shards=9, timeout_minutes=5)["steps"]]
    assert len(set(keys)) == 9
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", key) for key in keys)


def test_dollar_signs_are_not_left_for_buildkite_to_fill_in():
    steps = buildkite_steps(make_cells(2), shards=1, timeout_minutes=5, args=("-k", "$HOME"))
    assert "$$HOME" in steps["steps"][0]["command"]


def test_there_are_never_more_jobs_than_cells():
    assert len(github_matrix(make_cells(2), 8)["include"]) == 2


def test_a_job_of_one_cell_is_named_after_it():
    assert github_matrix(make_cells(1), 1)["include"][0]["label"].endswith("tiny-llama/v1-uva-gb0")


def test_pipelines_are_plain_json():
    value = buildkite_steps(make_cells(3), shards=2, timeout_minutes=5)
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("num", "shards", "minutes", "text"),
    [
        (0, 1, 1, "no cell is left"),
        (1, 0, 1, "shards=0 must be >= 1"),
        (1, 1, 0, "timeout_minutes=0 must be >= 1"),
    ],
)
def test_impossible_requests_are_refused(num, shards, minutes, text):
    with pytest.raises(UsageError, match=text):
        buildkite_steps(make_cells(num), shards=shards, timeout_minutes=minutes)


def test_a_shard_outside_the_range_is_refused():
    with pytest.raises(UsageError, match="shard=4 must be between 1 and num_shards=3"):
        shard_cells(make_cells(5), 4, 3)
