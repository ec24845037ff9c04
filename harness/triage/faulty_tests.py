"""Tests that prove nothing although every token is equal: the harness must refuse each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.core import OffloadConfig, PlannedCase, Run, Tier
from harness.faults import FAULTS
from harness.plan import build_pair

from .faultcases import build_setting, load_fault_workload

Tamper = Callable[[Run, Run], Run]
"""(baseline, target) -> the target as the bad test would have measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyTest:
    """One way to build a comparison badly."""

    name: str
    summary: str
    """One sentence: what the test does wrong."""
    refused_by: str
    """Who must refuse it: a judge, or `case` for the case as a whole."""
    says: str
    """Words that the refusal must hold."""
    build: Callable[[], PlannedCase] | None = None
    tamper: Tamper | None = None
    """What the launcher never does by itself is done to its run afterwards."""
    needs: str = ""
    """What the engine lacks to run it; empty when it runs."""


def _same_setting() -> PlannedCase:
    setting = build_setting(None, "v2", "prefetch")
    return build_pair(setting, setting, load_fault_workload("tiny-llama"))


def _zero_budget() -> PlannedCase:
    offload = OffloadConfig(offload_backend="uva", cpu_offload_gb=0)
    target = replace(build_setting(None, "v2", "none"), offload=offload)
    return build_pair(target.baseline(), target, load_fault_workload("tiny-llama"))


def _sampling() -> PlannedCase:
    greedy = load_fault_workload("tiny-llama")
    params = replace(greedy.sampling_params, temperature=0.8, seed=0)
    target = build_setting(None, "v2", "prefetch")
    workload = replace(greedy, name="faults-sampled", sampling_params=params)
    return build_pair(target.baseline(), target, workload, tier=Tier.EXACT)


def _other_runner() -> PlannedCase:
    target = build_setting(FAULTS.get("runner-always-v1"), "v2", "prefetch")
    baseline = replace(target, offload=OffloadConfig())
    return build_pair(baseline, target, load_fault_workload("tiny-llama"))


def _plain_prefetch() -> PlannedCase:
    target = build_setting(None, "v2", "prefetch")
    return build_pair(target.baseline(), target, load_fault_workload("tiny-llama"))


def _same_weights() -> PlannedCase:
    """What is loaded already, reloaded as if it were another checkpoint."""
    honest = load_fault_workload("tiny-llama", "reload-same")
    steps = [
        replace(step, args={**step.args, "label": "changed"}) if step.args else step
        for step in honest.steps
    ]
    target = build_setting(None, "v2", "prefetch")
    workload = replace(honest, name="faults-same-weights", steps=tuple(steps))
    return build_pair(target.baseline(), target, workload)


def _share_process(baseline: Run, target: Run) -> Run:
    assert baseline.probe is not None, "judged before"
    assert target.probe is not None, "judged before"
    return replace(target, probe=replace(target.probe, process_id=baseline.probe.process_id))


FAULTY_TESTS = (
    FaultyTest(
        name="same-setting-twice",
        summary="both arms get the same setting",
        refused_by="case",
        says="same setting",
        build=_same_setting,
    ),
    FaultyTest(
        name="zero-budget",
        summary="UVA is asked for with a budget of 0 bytes",
        refused_by="effect",
        says="selects no parameter",
        build=_zero_budget,
    ),
    FaultyTest(
        name="sampling-not-greedy",
        summary="tokens are sampled at a temperature",
        refused_by="tokens",
        says="sampling",
        build=_sampling,
    ),
    FaultyTest(
        name="other-runner-than-asked",
        summary="both arms ask for V2 and run V1",
        refused_by="effect",
        says="runner v2 was asked for, v1 is live",
        build=_other_runner,
    ),
    FaultyTest(
        name="memory-in-shared-process",
        summary="both arms are measured in one process, whose allocator remembers the first",
        refused_by="memory",
        says="one process",
        build=_plain_prefetch,
        tamper=_share_process,
    ),
    FaultyTest(
        name="reload-of-same-checkpoint",
        summary="an update test reloads the weights that are loaded already",
        refused_by="tokens",
        says="a reload of the same weights proves no update",
        build=_same_weights,
    ),
)
