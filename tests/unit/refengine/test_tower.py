import pytest
import torch

from harness.core import OffloadConfig, Setting
from harness.observe.weights import WeightRecorder
from harness.plan import expect, parameter_shapes
from harness.refengine import SamplingParams
from harness.settings import load_model

MODEL = "seeded-llama-tower"
PROMPTS = [[5, 9, 17, 3], [7] * 11, [21]]
PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)
RING = {"offload_group_size": 1, "offload_prefetch_step": 3}
ALL, TOWER = {"cpu_offload_gb": 1}, {"cpu_offload_gb": 1, "cpu_offload_params": ["prompt_tower"]}
PART = {"cpu_offload_gb": 0.0015}


@pytest.fixture
def make(make_llm, engine_env):
    def make_engine(runner, uva=True, **args):
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", {"v1": "0", "v2": "1"}[runner])
        engine_env.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", str(int(not uva)))
        defaults = {"load_format": "auto", "max_model_len": 64, "dtype": "float32"}
        return make_llm(load_model(MODEL).path, **{**defaults, **args})

    return make_engine


def worker_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def answers(llm):
    return [o.token_ids for o in llm.generate(prompt_token_ids=PROMPTS, sampling_params=PARAMS)]


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize(
    ("uva", "args"),
    [
        (True, {}),
        (True, {"max_num_batched_tokens": 8, "max_num_seqs": 4}),  # the longest prompt in chunks
        (True, {"enforce_eager": False}),  # a prompt of one token is no decode step
        (True, {"pipeline_parallel_size": 2}),
        (True, ALL),
        (False, ALL),
        (False, TOWER),
        (False, {**ALL, "enforce_eager": False}),
        (True, RING),
    ],
)
def test_tokens_are_the_same_however_the_tower_is_run_or_held(make, runner, uva, args):
    assert answers(make("v1")) == answers(make(runner, uva, **args))


def test_answers_depend_on_the_tower(make):
    llm = make("v1")
    before = answers(llm)

    for param in worker_of(llm).model_runner.model.prompt_tower.parameters():
        param.data.zero_()

    assert before != answers(llm)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_tower_is_read_by_prompts_only(make, runner):
    llm = make(runner)
    recorder = WeightRecorder("full")
    worker_of(llm).device.observers.append(recorder)

    answers(llm)

    reads = {name: seen.num_reads for name, seen in recorder.reads.items()}
    tower = {count for name, count in reads.items() if name.startswith("prompt_tower.")}
    stack = {count for name, count in reads.items() if name.startswith("model.layers.")}
    assert {1} == tower
    assert {PARAMS.max_tokens} == stack


@pytest.mark.parametrize("fields", [ALL, TOWER, PART, RING])
def test_what_is_offloaded_is_what_the_arithmetic_says(make, fields):
    args = {k: frozenset(v) if k.endswith("params") else v for k, v in fields.items()}
    model = load_model(MODEL)
    expected = expect(Setting(runner="v1", offload=OffloadConfig(**args)), model)
    runner = worker_of(make("v1", **fields)).model_runner
    names = {id(p): n for n, p in runner.model.named_parameters()}

    held = {names[id(p)] for p in runner.offloader.masters()}

    assert set(expected.offloaded_params) == held
    assert list(names.values()) == [p.name for p in parameter_shapes(model)]
    in_tower = {name for name in held if name.startswith("prompt_tower.")}
    assert (0 if fields is RING else 6) == len(in_tower)
    assert (fields is TOWER) == (held == in_tower)


def test_a_budget_is_spent_on_the_tower_first(make):
    offloader = worker_of(make("v1", **PART)).model_runner.offloader

    assert ["prompt_tower"] * 6 == [key.partition(".")[0] for key in offloader.host_copies][:6]
    assert any(key.startswith("0.") for key in offloader.host_copies)
    assert not any(key.startswith("7.") for key in offloader.host_copies)


def test_the_tower_keeps_the_other_rows():
    from harness.refengine.models.tower import put_rows, take_rows

    hidden = torch.arange(8.0).view(4, 2)
    rows = torch.tensor([1, 3])

    assert torch.equal(hidden[[1, 3]], take_rows(hidden, rows))
    changed = put_rows(hidden, rows, -torch.ones(2, 2))
    assert [[0, 1], [-1, -1], [4, 5], [-1, -1]] == changed.tolist()
    assert 7 == hidden[3, 1]
