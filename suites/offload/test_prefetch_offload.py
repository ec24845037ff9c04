"""Prefetch offload over group, num, step and selectors, pinned and not, both runners."""

import pytest

from harness.core import ComparisonVacuous

RUNNERS = [pytest.param(r, marks=getattr(pytest.mark, f"runner_{r}")) for r in ("v1", "v2")]
pytestmark = pytest.mark.prefetch

RINGS = [
    # group, num, step: modules in the ring for 8 layers stand behind
    pytest.param(8, 2, 1, id="g8n2s1"),  # 2
    pytest.param(2, 1, 1, id="g2n1s1"),  # 4
    pytest.param(2, 1, 3, id="g2n1s3"),  # 4, which 3 does not divide
    pytest.param(1, 1, 3, id="g1n1s3"),  # 8, which 3 does not divide
    pytest.param(4, 3, 4, id="g4n3s4"),  # 6, which 4 does not divide
    pytest.param(4, 1, 5, id="g4n1s5"),  # 2, fewer than the slots
]


def ring_args(group, num, step):
    return [
        "--offload-group-size", str(group),
        "--offload-num-in-group", str(num),
        "--offload-prefetch-step", str(step),
    ]  # fmt: skip


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(("group", "num", "step"), RINGS)
def test_prefetch_ring(compare, runner, group, num, step):
    result = compare(ring_args(group, num, step), {}, runner=runner)

    assert 8 // group * num == len(result.case.expected.offloaded_layers)
    assert step == result.case.expected.slot_capacity


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("disable_pin", ["0", "1"], ids=["pin1", "pin0"])
@pytest.mark.parametrize("selectors", [["gate_up_proj", "down_proj"], ["self_attn"]])
def test_prefetch_selectors(compare, runner, disable_pin, selectors):
    args = [*ring_args(8, 2, 1), "--offload-params", *selectors]

    result = compare(
        args, {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": disable_pin}, runner=runner
    )

    assert (6, 7) == result.case.expected.offloaded_layers
    assert (disable_pin == "0") == result.case.expected.is_pinned


@pytest.mark.parametrize("runner", RUNNERS)
def test_ignored_second_backend_is_vacuous(compare, runner):
    with pytest.raises(ComparisonVacuous, match="cpu_offload_gb"):
        compare([*ring_args(2, 1, 1), "--cpu-offload-gb", "1"], {}, runner=runner)
