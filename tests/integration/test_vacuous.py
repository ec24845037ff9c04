"""Equal tokens alone are no pass: where an effect is not proven the verdict is VACUOUS, exit 4."""

import pytest

from .commandline import run_harness


def verdicts(answer):
    return {c["cell"]: c["verdict"] for c in answer.json["cases"] if c["role"] == "case"}


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("--cpu-offload-gb 1 --cpu-offload-params gate_proj", "'gate_proj' matches none"),
        (
            "--offload-group-size 2 --offload-prefetch-step 1 --cpu-offload-gb 1",
            "cpu_offload_gb=1",
        ),
    ],
    ids=["selector-that-matches-nothing", "ignored-second-backend"],
)
def test_a_request_without_effect(tmp_path, target, cause):
    answer = run_harness(
        "compare", "tiny-llama", "--workload", "short", "-o", tmp_path, "--target", target, "--json"
    )

    assert 4 == answer.code, answer.out + answer.err
    assert ["VACUOUS"] == list(verdicts(answer).values())
    (case,) = [c for c in answer.json["cases"] if c["role"] == "case"]
    assert case["findings"]["tokens"].startswith("PASS")
    assert cause in case["findings"]["effect"]
    assert "although every token is equal" in answer.json["outcome"]["sentence"]


@pytest.mark.parametrize("side", ["", "--cpu-offload-gb 1"], ids=["none", "both-offload"])
def test_both_sides_the_same_setting(tmp_path, side):
    answer = run_harness(
        "compare", "tiny-llama", "--workload", "short", "-o", tmp_path, "--json",
        "--baseline", side, "--target", side,
    )  # fmt: skip

    assert 4 == answer.code, answer.out + answer.err
    assert ["VACUOUS"] == list(verdicts(answer).values())


def test_an_offloader_that_is_never_installed(small_matrix, tmp_path):
    answer = run_harness(
        "run", "--matrix", small_matrix, "--fault", "offloader-not-installed", "-o", tmp_path,
        "--json",
    )  # fmt: skip

    assert 4 == answer.code, answer.out + answer.err
    found = verdicts(answer)
    assert 4 == len(found)
    for cell, verdict in found.items():
        assert ("PASS" if "/v1-" in cell else "VACUOUS") == verdict, cell
    for case in answer.json["cases"]:
        if case["role"] != "control":
            assert case["findings"]["tokens"].startswith("PASS")
    assert "although every token is equal" in answer.json["outcome"]["sentence"]
    assert {"ok"} == set(answer.json["outcome"]["controls"].values())


def test_a_matrix_without_offload_proves_nothing(tmp_path):
    matrix = tmp_path / "none.yaml"
    matrix.write_text("models: [tiny-llama]\nworkload: short\naxes:\n  runner: [v2]\n")

    answer = run_harness("run", "--matrix", matrix, "-o", tmp_path / "out")

    assert answer.code in (2, 4)
    assert "PASS" not in answer.out
