"""Fixtures of the lifecycle suite: a named lifecycle under one offload setting."""

from dataclasses import replace

import pytest

from harness.core import RunStatus
from harness.plan import build_pair
from harness.settings import load_model, load_workload, parse_engine_args


def pytest_collection_modifyitems(items):
    for item in items:
        if "suites/lifecycle" in item.nodeid:
            item.add_marker(pytest.mark.offload)
            item.extra_keyword_matches.add("lifecycle")


@pytest.fixture
def offload_by(harness_engine):
    """The setting of `args` and `env` on one runner, with every recorder."""

    def read(args, env, runner):
        setting = parse_engine_args(args, env, engine=harness_engine.name, force_runner=runner)
        return replace(
            setting,
            python=harness_engine.python,
            release=harness_engine.release,
            instruments=("ordering", "integrity"),
        )

    return read


@pytest.fixture
def live_through(check_case, offload_by, harness_model):
    """Compare a lifecycle without offload to the same with `args` and `env`, on one runner."""

    def run(lifecycle, args, env, *, runner, model=None):
        target = offload_by(args, env, runner)
        workload = load_workload(lifecycle, load_model(model or harness_model))
        return check_case(build_pair(target.baseline(), target, workload))

    return run


@pytest.fixture
def refuse(harness_session, offload_by, harness_model):
    """Why the engine refuses to live through `steps`; it must, with and without offload."""

    def run(steps, args, *, runner):
        target = offload_by(args, {}, runner)
        whole = load_workload("short", load_model(harness_model))
        workload = replace(whole, name="refused", steps=steps)
        planned = build_pair(target.baseline(), target, workload)
        runs = [harness_session.run(key) for key in (planned.baseline_key, planned.target_key)]
        assert [RunStatus.UNSUPPORTED] * 2 == [run.status for run in runs]
        assert runs[0].error == runs[1].error
        return runs[1].error

    return run
