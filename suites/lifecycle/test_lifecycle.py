"""What happens after the first generate: every lifecycle, both runners, every offload mode."""

import pytest

from harness.core import Step, Verdict
from harness.settings.lifecycles import LIFECYCLES

RUNNERS = [pytest.param(r, marks=getattr(pytest.mark, f"runner_{r}")) for r in ("v1", "v2")]
NO_UVA = {"VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": "1"}
NO_PIN = {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1"}
BUDGET = ["--cpu-offload-gb", "1"]
RING = ["--offload-group-size", "1", "--offload-prefetch-step", "3"]
MODES = [
    pytest.param(BUDGET, {}, id="uva", marks=pytest.mark.uva),
    pytest.param(BUDGET, NO_UVA, id="uva-copy", marks=pytest.mark.uva),
    pytest.param(RING, {}, id="prefetch", marks=pytest.mark.prefetch),
]
UNPINNED = [
    pytest.param(BUDGET, {**NO_UVA, **NO_PIN}, id="uva-copy-pin0", marks=pytest.mark.uva),
    pytest.param(RING, NO_PIN, id="prefetch-pin0", marks=pytest.mark.prefetch),
]
PIN_MATTERS = ("reload-changed", "sleep-1", "sleep-2", "engine-before")
"""Lifecycles that write host copies, or that an engine with another pin setting comes before."""
STAGES = ["--pipeline-parallel-size", "2"]
TWO_STAGES = [("sleep-2", "v2", RING), ("patch", "v1", BUDGET)]
CYCLES = ("sleep-cycles", "reload-cycles")
"""Fifty of them: tried where a slot of the pool must be right again each time."""
HARD_MODELS = ("seeded-llama-int8", "seeded-llama-tower", "seeded-lfm2")
"""Loading replaces the weights; a tower beside the stack; layers of two kinds."""
CHANGES_WEIGHTS = ("reload-changed", "sleep-2")
PROOFS = {"effect", "placement", "memory", "ordering", "integrity", "tokens"}


def check(result):
    assert Verdict.PASS is result.verdict
    assert PROOFS <= {f.judge for f in result.findings if f.verdict is Verdict.PASS}


# the mode varies first, so that cells with a baseline in common stand together
@pytest.mark.parametrize(("args", "env"), MODES)
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("lifecycle", [name for name in LIFECYCLES if name not in CYCLES])
def test_every_step_is_proven(live_through, lifecycle, runner, args, env):
    check(live_through(lifecycle, args, env, runner=runner))


@pytest.mark.prefetch
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("lifecycle", CYCLES)
def test_fifty_cycles_leak_no_byte_and_change_no_token(live_through, lifecycle, runner):
    result = live_through(lifecycle, RING, {}, runner=runner)

    check(result)
    steps = [step.kind for step in result.case.workload.steps]
    assert 51 == steps.count("generate")
    assert 50 == steps.count("sleep") + steps.count("reload_weights")


@pytest.mark.parametrize(("args", "env"), MODES)
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("lifecycle", CHANGES_WEIGHTS)
@pytest.mark.parametrize("model", HARD_MODELS)
def test_every_step_is_proven_on_hard_models(live_through, model, lifecycle, runner, args, env):
    check(live_through(lifecycle, args, env, runner=runner, model=model))


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("level", [1, 2])
def test_generating_without_weights_is_refused(refuse, runner, level):
    """Asleep at level 1, awake but discarded at level 2: never an answer from garbage."""
    steps = [Step(), Step(kind="sleep", args={"level": level})]
    steps += [Step(kind="wake_up")] if level == 2 else []

    reason = refuse((*steps, Step()), RING, runner=runner)

    assert ("reload_weights() first" if level == 2 else "wake_up() first") in reason


@pytest.mark.parametrize(("args", "env"), UNPINNED)
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("lifecycle", PIN_MATTERS)
def test_every_step_is_proven_without_pinned_memory(live_through, lifecycle, runner, args, env):
    check(live_through(lifecycle, args, env, runner=runner))


@pytest.mark.parametrize(("lifecycle", "runner", "args"), TWO_STAGES)
def test_every_step_is_proven_of_two_pipeline_stages(live_through, lifecycle, runner, args):
    check(live_through(lifecycle, [*args, *STAGES], {}, runner=runner))
