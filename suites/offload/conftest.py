"""Fixtures of the offload suite: two settings given as vLLM's tests give them."""

from dataclasses import replace

import pytest

from harness.core import Tier
from harness.plan import build_pair
from harness.settings import load_model, load_workload, parse_engine_args

RUNNERS = ("v1", "v2")


def pytest_collection_modifyitems(items):
    for item in items:
        if "suites/offload" in item.nodeid:
            item.add_marker(pytest.mark.offload)


@pytest.fixture
def compare(check_case, harness_model, harness_engine):
    """Compare a baseline without offload to one with `args` and `env`, on the same runner."""

    def read(args, env, runner):
        setting = parse_engine_args(args, env, engine=harness_engine.name, force_runner=runner)
        return replace(setting, python=harness_engine.python, release=harness_engine.release)

    def run(args, env, *, runner, tier=Tier.EXACT):
        workload = load_workload("default", load_model(harness_model))
        baseline = read([], {"VLLM_USE_V2_MODEL_RUNNER": None}, runner)
        target = read(args, env, runner)
        baseline = target.baseline() if target.baseline() != baseline else baseline
        return check_case(build_pair(baseline, target, workload, tier=tier))

    return run
