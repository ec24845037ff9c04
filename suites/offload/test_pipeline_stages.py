"""Layers spread over pipeline stages, each of which offloads its own, both runners."""

import pytest

RUNNERS = [pytest.param(r, marks=getattr(pytest.mark, f"runner_{r}")) for r in ("v1", "v2")]
NO_UVA = {"VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": "1"}
NO_PIN = {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1"}
BUDGET = ["--cpu-offload-gb", "1"]
RING = ["--offload-group-size", "1", "--offload-prefetch-step", "3"]
CELLS = [
    pytest.param(BUDGET, {}, id="uva", marks=pytest.mark.uva),
    pytest.param(BUDGET, {**NO_UVA, **NO_PIN}, id="uva-copy-pin0", marks=pytest.mark.uva),
    pytest.param(RING, {}, id="prefetch", marks=pytest.mark.prefetch),
]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(("args", "env"), CELLS)
@pytest.mark.parametrize("stages", [2, 3])
def test_each_stage_offloads_its_own_layers(compare, runner, args, env, stages):
    result = compare([*args, "--pipeline-parallel-size", str(stages)], env, runner=runner)

    expected = [result.case.expected, *result.case.expected_ranks]
    assert [*range(8)] == [layer for each in expected for layer in each.offloaded_layers]
