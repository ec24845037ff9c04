"""accelerate under the whole harness: its matrix, its known-bad arms, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import OffloadConfig, RunStatus, Setting, Verdict
from harness.launch import engine_supports
from harness.pipeline import Options, Session
from harness.plan import build_pair, build_plan
from harness.settings import load_matrix, load_model, load_workload
from harness.triage.killtable import try_one

from .commandline import run_harness

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

MATRICES = Path(__file__).parents[2] / "suites/engines/matrices"
FAULTS = [
    "disk-copy-damaged",
    "weights-of-another-layer",
    "weights-left-behind",
    "conv-hook-not-forced",
]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    options = Options(jobs=2, deadline_s=120)
    with Session(tmp_path_factory.mktemp("out"), options=options) as opened:
        yield opened


def compare(session, setting, model="tiny-llama"):
    workload = load_workload("short", load_model(model))
    planned = build_pair(setting.baseline(), setting, workload)
    return session.compare(planned), session.run(planned.target_key)


def mapped(places, **fields):
    offload = OffloadConfig(offload_backend="device_map", device_map=places)
    return Setting(engine="accelerate", offload=offload, instruments=("integrity",), **fields)


@pytest.mark.parametrize("name", ["accelerate.yaml"])
def test_every_form_of_the_matrix_is_right_by_every_judge(tmp_path, name):
    matrix = load_matrix(MATRICES / name)
    works = [load_workload(w, load_model(name)) for w in matrix.workloads for name in matrix.models]
    plan = build_plan(matrix.settings, works, supports=engine_supports("accelerate"))

    with Session(tmp_path, options=Options(jobs=2, deadline_s=120)) as opened:
        outcome = opened.run_plan(plan)

    assert 0 == outcome.exit_code, outcome.sentence
    assert () == plan.unsupported
    assert {"ok"} == set(outcome.controls.values())
    cases = [r for r in opened.results if r.counts]
    assert len(matrix.models) * len(matrix.settings) == len(cases)
    for result in cases:
        said = {f.judge: f.verdict for f in result.findings}
        judges = ("effect", "placement", "memory", "integrity", "tokens")
        assert dict.fromkeys(judges, Verdict.PASS) == said, result.case.case_id
    forms = {r.case.target.offload.offload_backend for r in cases}
    assert {"cpu_offload", "disk_offload", "device_map"} == forms


def test_a_map_that_takes_nothing_away_is_vacuous_though_every_token_is_equal(tmp_path):
    answer = run_harness(
        "run", "--matrix", MATRICES / "accelerate_empty_map.yaml", "-o", tmp_path, "--json"
    )

    assert 4 == answer.code, answer.out + answer.err
    (case,) = [c for c in answer.json["cases"] if c["role"] == "case"]
    assert "VACUOUS" == case["verdict"]
    assert (
        "device_map backend was asked for, but selects no parameter" in case["findings"]["effect"]
    )
    assert case["findings"]["tokens"].startswith("PASS")
    assert {"ok"} == set(answer.json["outcome"]["controls"].values())


def test_a_damaged_file_fails_by_tokens_and_is_named(session):
    setting = Setting(
        engine="accelerate",
        offload=OffloadConfig(offload_backend="disk_offload"),
        instruments=("integrity",),
        faults=("disk-copy-damaged",),
    )

    result, run = compare(session, setting)

    said = {f.judge: f for f in result.findings}
    assert Verdict.FAIL is result.verdict
    assert ("disk-copy-damaged",) == run.planted_faults
    assert Verdict.FAIL is said["tokens"].verdict
    assert Verdict.FAIL is said["integrity"].verdict
    assert "layers.0.mlp.up_proj.weight" in said["integrity"].summary
    assert {Verdict.PASS} == {said[n].verdict for n in ("effect", "placement", "memory")}


def test_weights_of_another_layer_are_told_by_whose_they_are(session):
    setting = Setting(
        engine="accelerate",
        offload=OffloadConfig(offload_backend="disk_offload"),
        instruments=("integrity",),
        faults=("weights-of-another-layer",),
    )

    result, _ = compare(session, setting)

    (word,) = [f for f in result.findings if f.judge == "integrity"]
    assert "layers.0.mlp.up_proj.weight holds layers.1" in word.summary


@pytest.mark.parametrize("backend", ["cpu_offload", "disk_offload"])
def test_the_convolutions_read_what_no_hook_brought_and_only_at_decode(session, backend):
    setting = Setting(
        engine="accelerate",
        offload=OffloadConfig(offload_backend=backend),
        instruments=("integrity",),
        faults=("conv-hook-not-forced",),
    )

    result, run = compare(session, setting, "seeded-lfm2")

    wrong = {
        reads.name.removeprefix("model."): reads.digests
        for reads in run.probe.integrity.reads
        if set(reads.digests) != {reads.expected}
    }
    assert {f"layers.{i}.conv.conv.weight" for i in (0, 1, 3, 5, 6)} == set(wrong)
    assert all(digests["nowhere"] == 2 * 7 for digests in wrong.values()), "2 prompts, 8 tokens"
    said = {f.judge: f.verdict for f in result.findings}
    assert {Verdict.PASS} == {said[n] for n in ("effect", "placement", "memory")}
    _, clean = compare(session, replace(setting, faults=()), "seeded-lfm2")
    first = [[answer.token_ids[0] for answer in each.outputs] for each in (run, clean)]
    assert first[0] == first[1]


def test_the_fault_of_convolutions_says_where_there_are_none(session):
    setting = Setting(
        engine="accelerate",
        offload=OffloadConfig(offload_backend="cpu_offload"),
        instruments=("integrity",),
        faults=("conv-hook-not-forced",),
    )

    result, _ = compare(session, setting)

    assert Verdict.ERROR is result.verdict
    assert "found no convolution whose hook is run by force" in result.lead.summary


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_the_engine_is_caught_in_every_mode(session, name):
    line = try_one(session, name)

    assert line.rows
    assert "" == line.why


def test_an_entry_that_names_no_module_is_not_proven(session):
    places = {"": "cpu", "model.layers.2": "disk", "model.layers.9": "disk"}

    result, _ = compare(session, mapped(places))

    assert Verdict.VACUOUS is result.verdict
    assert "'model.layers.9' matches no parameter" in result.lead.summary


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (mapped({"model.norm": "disk"}), "device_map"),
        (mapped({"": "cpu", "lm_head": "disk"}, engine_args={"devices": 2}), "'devices'"),
        (mapped({"": "cpu", "lm_head": "tape"}), "'tape'"),
    ],
    ids=["incomplete-map", "unknown-argument", "unknown-place"],
)
def test_what_the_engine_refuses_is_unsupported_with_its_reason(session, setting, reason):
    target = replace(setting, instruments=())
    workload = load_workload("short", load_model("tiny-llama"))
    planned = build_pair(replace(target, engine_args={}).baseline(), target, workload)

    result = session.compare(planned)

    assert RunStatus.UNSUPPORTED is session.run(planned.target_key).status
    assert Verdict.UNSUPPORTED is result.verdict
    assert reason in result.lead.summary


def test_a_setting_of_vllms_is_unsupported_before_anything_is_launched():
    settings = [Setting(engine="accelerate", offload=OffloadConfig(cpu_offload_gb=1))]
    workload = load_workload("short", load_model("tiny-llama"))

    plan = build_plan(settings, [workload], supports=engine_supports("accelerate"), controls=False)

    assert () == plan.cases
    (skipped,) = plan.unsupported
    assert "has backends cpu_offload, disk_offload, device_map, not 'uva'" in skipped.reason


def test_accelerates_own_failure_is_an_error_with_its_words(session):
    """A map of the whole model to disk is a crash inside dispatch_model, not a refusal."""
    result, run = compare(session, mapped({"": "disk"}))

    if run.status is RunStatus.OK:
        pytest.skip("this release of accelerate can do it")
    assert RunStatus.CRASH is run.status
    assert Verdict.ERROR is result.verdict
    assert "index.json" in result.lead.summary
