"""`harness bench`: ratios, in both forms; small, since the figures are not what is tested."""

import pytest

from harness.cells import plan_matrix
from harness.cli import bench
from harness.core import LaunchError
from harness.settings import load_matrix

from .commandline import run_harness


def test_engine_part_gives_both_runners(tmp_path):
    pytest.importorskip("transformers")

    answer = run_harness(
        "bench", "--only", "engine", "--batch", 2, "--tokens", 4, "--rounds", 1, "--json"
    )

    assert 0 == answer.code, answer.err
    assert ["v2 without offload / transformers", "v1 without offload / transformers"] == [
        r["name"] for r in answer.json["ratios"]
    ]
    assert all(r["low"] <= r["ratio"] <= r["high"] for r in answer.json["ratios"])


def test_matrix_part_compares_with_cold_launches(tmp_path):
    matrix = tmp_path / "one.yaml"
    matrix.write_text(
        "models: [tiny-llama]\nworkload: short\naxes:\n  runner: [v2]\n"
        "  offload: [{cpu_offload_gb: 1}]\n"
    )

    answer = run_harness("bench", "--only", "matrix", "--matrix", matrix, "--naive", 1, "--json")

    assert 0 == answer.code, answer.err
    naive, outside = answer.json["ratios"]
    assert 0 < naive["ratio"]
    assert None is outside["ratio"]


def test_unknown_part_is_refused(cli):
    answer = cli("bench", "--only", "everything")

    assert 2 == answer.code
    known = "engine, matrix, instruments"
    assert f"harness: --only 'everything' is not known; known: {known}\n" == answer.err


def test_a_matrix_that_does_not_pass_gives_no_ratio(monkeypatch, tmp_path):
    plan = plan_matrix(load_matrix(None), select=lambda *_cell: False)

    with pytest.raises(LaunchError, match="did not pass, its time means nothing: Nothing was"):
        bench._time_matrix(plan, tmp_path)
