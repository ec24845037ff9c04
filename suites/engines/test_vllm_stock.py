"""Stock vLLM on a CPU: each verdict where it is true, with its reason in one sentence."""

from pathlib import Path

import pytest

MATRIX = Path(__file__).parent / "matrices/vllm_stock.yaml"
RUNNERS = {
    "v1": "vllm.v1.worker.cpu_model_runner.CPUModelRunner",
    "v2": "vllm.v1.worker.cpu.model_runner.CPUModelRunner",
}


@pytest.fixture(scope="module")
def finished(interpreter, run_matrix):
    interpreter("vllm")
    return run_matrix(MATRIX)


@pytest.fixture(scope="module")
def cells(finished):
    """Cells as `runner backend args`, those of the plain environment without args."""
    found = {}
    for result in finished.record.results:
        target = result.case.target
        extra = [*target.engine_args, *(n for n in target.env if n.startswith("TRITON_B"))]
        backend = target.offload.resolved_backend
        found[" ".join([result.case.role, target.runner, backend, *extra])] = result
    return found


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_baseline_equals_itself(cells, runner):
    assert "PASS" == cells[f"null {runner} none"].verdict.value


def test_both_runners_are_live_and_give_equal_tokens(finished, cells):
    result = cells["runner v2 none"]

    assert "PASS" == result.verdict.value
    runs = finished.record.runs
    sides = [runs[result.baseline_run_id], runs[result.target_run_id]]
    assert list(RUNNERS.values()) == [run.probe.runner_class for run in sides]
    assert list(RUNNERS) == [run.probe.runner for run in sides]
    assert [(), ()] == [run.probe.drift for run in sides]


@pytest.mark.parametrize("runner", RUNNERS)
def test_uva_on_a_cpu_is_vacuous_though_its_offloader_is_installed(cells, runner):
    result = cells[f"case {runner} uva"]

    assert "VACUOUS" == result.verdict.value
    assert f"offload never took effect under runner {runner} (UVAOffloader" in result.lead.summary
    said = {f.judge: f.verdict.value for f in result.findings}
    assert "PASS" == said["tokens"]
    assert_is_one_sentence(result)


@pytest.mark.parametrize("runner", RUNNERS)
def test_prefetch_on_a_cpu_dies_at_load_and_shows_its_log(finished, cells, runner):
    result = cells[f"case {runner} prefetch"]

    assert "ERROR" == result.verdict.value
    assert "AssertionError in load: Module parameters should not already" in result.lead.summary
    run = finished.record.runs[result.target_run_id]
    assert any("AssertionError" in line for line in run.log_tail)
    assert_is_one_sentence(result)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("case v1 uva max_model_len", "max_model_len (100000) is greater than the derived"),
        ("case v2 uva TRITON_BACKENDS_IN_TREE", "Model Runner V2 requires Triton."),
    ],
)
def test_what_vllm_refuses_is_unsupported_in_its_own_words(cells, cell, reason):
    result = cells[cell]

    assert "UNSUPPORTED" == result.verdict.value
    assert reason in result.lead.summary
    assert "\n" not in result.lead.summary


def test_the_worst_verdict_is_the_exit_code(finished):
    counts = {"PASS": 1, "FAIL": 0, "VACUOUS": 2, "UNSUPPORTED": 2, "ERROR": 2}
    assert counts == finished.answer["outcome"]["counts"]
    assert 3 == finished.code


def assert_is_one_sentence(result):
    assert result.lead.summary
    assert "\n" not in result.lead.summary
    assert len(result.lead.summary) < 300
