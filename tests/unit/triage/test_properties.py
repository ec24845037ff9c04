"""Generated examples: possible, small on a command line, and judged by what is expected of them."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from harness.core import OffloadConfig, UsageError, Verdict
from harness.faults import FAULTS
from harness.plan import expect
from harness.settings.tensors import MODEL_TYPES
from harness.triage.examples import (
    MAX_POSITIONS,
    Example,
    expected_verdict,
    from_text,
    make_examples,
    to_text,
)
from harness.triage.properties import Prover, Trial, prove_properties

PREFETCH = OffloadConfig(offload_group_size=1, offload_prefetch_step=2)
NARROW = "pin-flag-ignored"
"""Changes something only under prefetch without pinning."""
THREE = Example(num_layers=3, offload=PREFETCH)
often = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class FakeProver:
    """Judges an example by a rule instead of a run."""

    def __init__(self, cache_dir, breaks):
        self.cache_dir = cache_dir
        self.breaks = breaks
        self.seen = []

    def try_example(self, example):
        self.seen.append(example)
        verdict = Verdict.FAIL if self.breaks(example) else Verdict.PASS
        return Trial(example=example, expected=Verdict.PASS, verdict=verdict, words={})


@often
@given(example=make_examples())
def test_every_example_is_possible_and_comes_back_from_its_text(example):
    assert example == from_text(to_text(example))
    assert expect(example.setting, example.build_model("")).backend in ("prefetch", "uva")
    assert not example.setting.is_baseline
    assert max(map(len, example.prompts)) + example.max_tokens <= MAX_POSITIONS
    assert example.num_heads % example.num_kv_heads == 0


def test_examples_reach_every_kind_of_model_mode_and_schedule(tmp_path):
    prover = FakeProver(tmp_path, lambda _example: False)

    report = prove_properties(prover, num_examples=300)

    assert report.failure is None
    assert 300 == report.num_examples == len(prover.seen)
    for name in ("prefetch", "uva", "uva-copy", "in_order", "copy_late", "compute_late", "seeded",
                 "float32", "bfloat16", "v1", "v2", *MODEL_TYPES):  # fmt: skip
        assert report.counts[name] >= 15, name
    assert {True, False} == {e.is_tied for e in prover.seen}
    assert {1, 2, 3, 4, 5, 6} == {e.num_layers for e in prover.seen}


def test_same_seed_gives_the_same_examples(tmp_path):
    first, again, other = (FakeProver(tmp_path, lambda _e: False) for _ in range(3))
    for prover, seed in ((first, 7), (again, 7), (other, 8)):
        prove_properties(prover, num_examples=20, seed=seed)

    assert first.seen == again.seen
    assert first.seen != other.seen


def test_failure_is_made_as_small_as_it_can_be(tmp_path):
    prover = FakeProver(tmp_path, lambda e: e.num_layers >= 3 and e.schedule == "copy_late")

    report = prove_properties(prover, num_examples=200)

    smallest = report.failure.example
    assert replace(smallest, offload=OffloadConfig()) == Example(num_layers=3, schedule="copy_late")
    assert report.num_examples + report.num_shrinks == len(prover.seen)


def test_fault_is_planted_only_where_it_changes_something(tmp_path):
    prover = FakeProver(tmp_path, lambda _example: False)

    prove_properties(prover, num_examples=60, fault=NARROW)

    assert {(), (NARROW,)} == {e.faults for e in prover.seen}
    for example in prover.seen:
        target = replace(example, faults=()).setting
        assert bool(example.faults) == (FAULTS.get(NARROW).why_not(target) is None)


@pytest.mark.parametrize("fault", ["no-such-fault", "reload-misses-master"])
def test_fault_that_cannot_be_planted_is_a_usage_error(tmp_path, fault):
    with pytest.raises(UsageError):
        prove_properties(FakeProver(tmp_path, lambda _e: False), num_examples=1, fault=fault)


def test_text_leaves_defaults_out():
    assert '{"num_layers":3,"offload":{"offload_group_size":1,"offload_prefetch_step":2}}' == (
        to_text(THREE)
    )


@pytest.mark.parametrize(
    "text",
    ["", "[", "[1]", '{"layers":3}', '{"num_layers":"3"}', '{"offload":{"cpu_offload_gb":-1}}',
     '{"architecture":"GPT"}'],
)  # fmt: skip
def test_text_that_is_no_example_is_a_usage_error(text):
    with pytest.raises(UsageError):
        from_text(text)


@pytest.mark.parametrize(
    ("offload", "verdict"),
    [
        (PREFETCH, Verdict.PASS),
        (replace(PREFETCH, offload_group_size=4), Verdict.VACUOUS),
        (replace(PREFETCH, cpu_offload_gb=0.001), Verdict.VACUOUS),
        (replace(PREFETCH, offload_params=frozenset({"mlp", "q_norm"})), Verdict.VACUOUS),
        (OffloadConfig(offload_backend="uva"), Verdict.VACUOUS),
        (OffloadConfig(cpu_offload_gb=1), Verdict.PASS),
    ],
)
def test_vacuous_is_expected_only_where_what_is_asked_cannot_be(tmp_path, offload, verdict):
    planned = replace(THREE, offload=offload).plan(tmp_path)

    assert expected_verdict(planned.case) is verdict


def test_checkpoint_is_the_example_s_own(tmp_path):
    planned = THREE.plan(tmp_path)
    model = planned.case.workload.model

    assert THREE.config == json.loads((tmp_path / model.path / "config.json").read_text())
    assert planned.baseline_key.setting.offload == OffloadConfig()


def test_prover_runs_an_example_once(tmp_path, monkeypatch):
    prover = Prover(None, tmp_path)
    trial = Trial(example=THREE, expected=Verdict.PASS, verdict=Verdict.PASS, words={})
    ran = []
    monkeypatch.setattr(prover, "_run", lambda example: ran.append(example) or trial)

    assert prover.try_example(THREE) is prover.try_example(THREE) is trial
    assert [THREE] == ran


def test_damage_is_planted_only_where_something_is_offloaded(tmp_path):
    prover = FakeProver(tmp_path, lambda _example: False)

    prove_properties(prover, num_examples=60, fault="host-copy-damaged")

    assert {True, False} == {bool(e.faults) for e in prover.seen}
    for example in prover.seen:
        wanted = expect(replace(example, faults=()).setting, example.build_model(""))
        assert bool(example.faults) == bool(wanted.offloaded_bytes)
