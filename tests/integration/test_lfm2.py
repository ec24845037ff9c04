"""A model whose layers differ in shape, and whose convolutions' weight is read directly."""

from dataclasses import replace

import pytest

from harness.core import OffloadConfig, RunStatus, Setting, Verdict
from harness.engines.reference import ReferenceEngine
from harness.faults import FAULTS
from harness.judge import judge_case
from harness.pipeline import Options, Session
from harness.plan import build_pair, expect, parameter_shapes
from harness.settings import load_model, load_workload
from harness.triage.killtable import try_one
from tests.live import set_engine_env, worker_of

from .forked import run_with

MODES = {
    "uva": OffloadConfig(cpu_offload_gb=1),
    "uva-copy": OffloadConfig(cpu_offload_gb=1, uva=False),
    "prefetch": OffloadConfig(offload_group_size=1, offload_prefetch_step=3),
}
CELLS = [(runner, mode) for runner in ("v1", "v2") for mode in MODES]
JUDGES = ("effect", "placement", "memory", "ordering", "integrity", "tokens")
KIB = 1024 / 1024**3


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    options = Options(jobs=2, deadline_s=120)
    with Session(tmp_path_factory.mktemp("out"), options=options) as opened:
        yield opened


def judge(session, workload="short", **fields):
    """What each judge says of a setting on the model, and why one objects."""
    work = load_workload(workload, load_model("seeded-lfm2"))
    work = replace(work, sampling_params=replace(work.sampling_params, max_tokens=6))
    setting = Setting(**{"instruments": ("ordering", "integrity"), **fields})
    result = session.compare(build_pair(setting.baseline(), setting, work))
    return {f.judge: f.verdict for f in result.findings}, [f.summary for f in result.findings]


@pytest.mark.parametrize(("runner", "mode"), CELLS)
def test_a_pair_passes_by_every_judge(session, runner, mode):
    said, why = judge(session, runner=runner, offload=MODES[mode])

    assert dict.fromkeys(JUDGES, Verdict.PASS) == said, why


@pytest.mark.parametrize(("runner", "mode"), CELLS)
def test_a_pair_with_recorded_graphs_passes(session, runner, mode):
    said, why = judge(session, runner=runner, offload=MODES[mode], enforce_eager=False)

    assert {Verdict.PASS} == set(said.values()), why


@pytest.mark.parametrize("name", ["reload-changed", "patch", "sleep-1", "sleep-2", "abort"])
@pytest.mark.parametrize(("runner", "mode"), [("v1", "uva-copy"), ("v2", "prefetch")])
def test_a_lifecycle_passes_by_every_judge(session, name, runner, mode):
    said, why = judge(session, name, runner=runner, offload=MODES[mode])

    assert dict.fromkeys(JUDGES, Verdict.PASS) == said, why


@pytest.mark.parametrize("name", ["decode-bypasses-hook", "decode-bypasses-hook-conv"])
def test_a_weight_read_where_no_hook_put_it_is_seen_on_both_runners(session, name):
    line = try_one(session, name)

    assert "" == line.why
    assert {("v1", "uva-copy"), ("v1", "prefetch"), ("v2", "uva-copy"), ("v2", "prefetch")} == {
        (row.runner, row.mode) for row in line.rows
    }


def test_of_the_convolutions_alone_the_weight_is_wrong(session):
    _, why = judge(
        session,
        runner="v2",
        offload=MODES["uva-copy"],
        faults=("decode-bypasses-hook-conv",),
    )

    (text,) = [line for line in why if "holds bytes that are no parameter's" in line]
    assert text.startswith("layers.0.short_conv.conv.weight")
    assert "(and 4 more)" in text


@pytest.mark.parametrize(
    ("mode", "objecting"),
    [("none", set()), ("uva", set()), ("uva-copy", {"integrity", "tokens"})],
)
def test_where_no_hook_runs_none_can_be_bypassed(session, tmp_path, mode, objecting):
    """The catalogue's own is planted only where it applies; here it is, in every mode."""
    fault = replace(FAULTS.get("decode-bypasses-hook-conv"), name="of-the-test", modes=(mode,))
    work = load_workload("short", load_model("seeded-lfm2"))
    setting = Setting(
        runner="v1",
        offload={"none": OffloadConfig(), **MODES}[mode],
        instruments=("ordering", "integrity"),
        faults=(fault.name,),
    )
    pair = build_pair(setting.baseline(), setting, work)

    run = run_with(tmp_path, fault, setting, work)
    found = judge_case(pair.case, session.run(pair.baseline_key), run)

    assert RunStatus.OK is run.status, run.error
    assert ("of-the-test",) == run.planted_faults
    verdicts = {f.judge: f.verdict for f in found}
    assert verdicts.keys() >= {"effect", "integrity", "tokens"}, found
    assert {
        name: Verdict.FAIL if name in objecting else Verdict.PASS for name in verdicts
    } == verdicts


@pytest.fixture
def start(monkeypatch):
    """`start(**fields of OffloadConfig)` -> the worker of an engine in this process."""
    started = []

    def make(offload):
        setting = Setting(runner="v1", offload=offload)
        set_engine_env(monkeypatch, setting)
        engine = ReferenceEngine()
        started.append(engine)
        work = load_workload("short", load_model("seeded-lfm2"))
        engine.start(setting, work, num_threads=1)
        return worker_of(engine)

    yield make
    for engine in started:
        engine.shutdown()


def test_the_arithmetic_has_every_name_shape_and_byte_of_the_live_model(start):
    model = start(OffloadConfig()).model_runner.model

    live = [(name, tuple(p.shape), p.nbytes) for name, p in model.named_parameters()]

    shapes = parameter_shapes(load_model("seeded-lfm2"))
    assert [(p.name, p.shape, p.num_bytes) for p in shapes] == live


BUDGETS = [1, 2, 200, 700, 1500, 3000, 10**6]


@pytest.mark.parametrize("kib", BUDGETS)
def test_a_budget_ends_at_the_parameter_that_the_arithmetic_says(start, kib):
    offload = OffloadConfig(cpu_offload_gb=kib * KIB)
    expected = expect(Setting(runner="v1", offload=offload), load_model("seeded-lfm2"))

    offloader = start(offload).model_runner.offloader

    held = tuple(f"model.layers.{key}" for key in offloader.host_copies)
    assert (expected.offloaded_params, expected.offloaded_bytes) == (
        held, offloader.cpu_offload_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("step", [1, 2, 3, 8])
@pytest.mark.parametrize(("group", "num"), [(1, 1), (3, 2), (4, 1)])
def test_a_pool_has_slots_for_each_kind_of_layer_that_is_in_the_ring(start, group, num, step):
    offload = OffloadConfig(
        offload_group_size=group, offload_num_in_group=num, offload_prefetch_step=step
    )
    expected = expect(Setting(runner="v1", offload=offload), load_model("seeded-lfm2"))

    offloader = start(offload).model_runner.offloader

    assert expected.pool_bytes == offloader.buffer_pool.total_bytes
    assert expected.slots == {o.module_index: o.slot_idx for o in offloader.module_offloaders}
    assert expected.offloaded_bytes == offloader.total_offloaded_bytes
