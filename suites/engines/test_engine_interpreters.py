"""Interpreters that cannot run an engine: an ERROR in seconds that names them and what to do."""

from pathlib import Path

MATRICES = Path(__file__).parent / "matrices"
SECONDS = 60
"""What a launch that fails may take on a busy machine."""


def test_a_missing_interpreter_beside_a_good_one_is_an_error_of_its_own_cells(
    interpreter, run_matrix, tmp_path
):
    good, gone = interpreter("accelerate"), tmp_path / "gone/bin/python"

    done = run_matrix(
        MATRICES / "accelerate_empty_map.yaml",
        *("--python", f"good={good}", "--python", f"gone={gone}"),
    )

    by_release = {r.case.target.release: r for r in done.results("case")}
    assert "VACUOUS" == by_release["good"].verdict.value
    assert "ERROR" == by_release["gone"].verdict.value
    said = f"python={str(gone)!r} cannot be started: there is no such file"
    assert said in by_release["gone"].lead.summary
    assert 3 == done.code


def test_an_interpreter_without_the_engine_is_an_error_that_says_what_to_install(
    interpreter, run_matrix
):
    without = interpreter("accelerate")

    done = run_matrix(
        MATRICES / "vllm_stock.yaml",
        *("--engine", "vllm", "--python", f"without={without}", "-k", "v1 and prefetch"),
    )

    (result,) = done.results("case")
    assert "ERROR" == result.verdict.value
    assert f"engine 'vllm' is not installed in {without}" in result.lead.summary
    assert 3 == done.code
    runs = done.record.runs
    for run_id in (result.baseline_run_id, result.target_run_id):
        assert runs[run_id].timings["total"] < SECONDS
