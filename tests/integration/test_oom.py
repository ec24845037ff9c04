"""A model that does not fit the device fits with offload; without, it is an ERROR that says why."""

import pytest

from harness.core import RunKey, RunStatus, Verdict
from harness.pipeline import Options, Session
from harness.plan import build_pair
from harness.settings import load_model, load_workload, parse_engine_args

OFFLOADS = [
    pytest.param(["--cpu-offload-gb", "1"], id="uva"),
    pytest.param(["--offload-group-size", "1", "--offload-prefetch-step", "1"], id="prefetch"),
]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with Session(tmp_path_factory.mktemp("out"), options=Options(jobs=1)) as opened:
        yield opened


def both_sides(runner, capacity, offload):
    limit = ["--device-memory-bytes", str(capacity)]
    workload = load_workload("short", load_model("tiny-llama"))
    sides = [parse_engine_args([*limit, *more], {}, force_runner=runner) for more in ([], offload)]
    return build_pair(*sides, workload)


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("offload", OFFLOADS)
def test_what_does_not_fit_is_an_error_and_fits_with_offload(session, runner, offload):
    planned = both_sides(runner, 5_000_000, offload)

    result = session.compare(planned)

    target = session.run(planned.target_key)
    assert RunStatus.OOM is session.run(planned.baseline_key).status
    assert RunStatus.OK is target.status
    assert [8, 8] == [len(o.token_ids) for o in target.outputs]
    assert target.probe.memory.device_peak_bytes <= 5_000_000
    assert Verdict.ERROR is result.verdict
    for words in (
        "baseline ran out of device memory",
        "asked for",
        "in use",
        "of capacity 5000000",
    ):
        assert words in result.lead.summary


def test_the_tokens_are_those_of_a_device_that_is_large_enough(session):
    small = both_sides("v2", 5_000_000, ["--cpu-offload-gb", "1"])
    large = parse_engine_args([], {}, force_runner="v2")
    workload = small.case.workload

    fitting = session.run(RunKey(setting=large, workload=workload))

    tokens = [[o.token_ids for o in r.outputs] for r in (session.run(small.target_key), fitting)]
    assert tokens[0] == tokens[1]


def test_a_cache_that_grows_into_what_offload_freed_is_no_failure(session):
    planned = both_sides("v2", 8_000_000, ["--cpu-offload-gb", "1"])

    result = session.compare(planned)

    caches = [
        session.run(key).probe.memory.by_kind["kv_cache"]
        for key in (planned.baseline_key, planned.target_key)
    ]
    assert caches[0] < caches[1]
    assert Verdict.PASS is result.verdict, result.lead.summary
