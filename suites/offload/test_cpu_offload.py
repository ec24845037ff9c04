"""CPU offload by UVA: pinning, views and copies, partial budgets and selectors, both runners."""

import pytest

from harness.core import ComparisonVacuous, Verdict

RUNNERS = [pytest.param(r, marks=getattr(pytest.mark, f"runner_{r}")) for r in ("v1", "v2")]
pytestmark = pytest.mark.uva


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("disable_uva", ["0", "1"], ids=["view", "copy"])
@pytest.mark.parametrize("disable_pin", ["0", "1"], ids=["pin1", "pin0"])
def test_cpu_offload(compare, runner, disable_uva, disable_pin):
    env = {
        "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": disable_pin,
        "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": disable_uva,
    }

    result = compare(["--cpu-offload-gb", "1"], env, runner=runner)

    assert Verdict.PASS is result.verdict
    assert {"effect", "placement", "memory", "tokens"} <= {f.judge for f in result.findings}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("budget", ["0.0005", "0.002", "0.004"])
def test_partial_budget_takes_exactly_the_parameters_it_reaches(compare, runner, budget):
    result = compare(["--cpu-offload-gb", budget], {}, runner=runner)

    expected = result.case.expected
    assert 0 < len(expected.offloaded_layers) <= 8
    assert expected.offloaded_bytes >= float(budget) * 2**30 or budget == "0.004"


@pytest.mark.parametrize("runner", RUNNERS)
def test_selector_takes_only_the_named_segments(compare, runner):
    args = ["--cpu-offload-gb", "1", "--cpu-offload-params", "gate_up_proj", "down_proj"]

    result = compare(args, {}, runner=runner)

    names = result.case.expected.offloaded_params
    assert len(names) == 16
    assert all(".mlp." in name for name in names)


@pytest.mark.parametrize("runner", RUNNERS)
def test_selector_that_matches_nothing_is_vacuous(compare, runner):
    with pytest.raises(ComparisonVacuous, match="gate_proj"):
        compare(["--cpu-offload-gb", "1", "--cpu-offload-params", "gate_proj"], {}, runner=runner)
