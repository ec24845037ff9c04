import random

import pytest
import torch

from harness.refengine import SamplingParams
from harness.refengine.device import SCHEDULES
from harness.refengine.offloader import NoopOffloader, get_offloader
from harness.refengine.runner import v1, v2

OFFLOADS = {
    "none": {},
    "uva": {"cpu_offload_gb": 1},
    "uva-part": {"cpu_offload_gb": 20e-6},
    "uva-selected": {"cpu_offload_gb": 1, "cpu_offload_params": ["mlp"]},
    "prefetch": {"offload_group_size": 2, "offload_prefetch_step": 1},
    "prefetch-ring": {
        "offload_group_size": 4,
        "offload_num_in_group": 3,
        "offload_prefetch_step": 2,
    },
}


def prompts(seed=0, lengths=(1, 5, 17, 40)):
    pick = random.Random(seed)
    return [[pick.randrange(3, 128) for _ in range(n)] for n in lengths]


def runner_of(llm):
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def answers(llm, params=None, **which):
    params = params or SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2)
    outputs = llm.generate(prompt_token_ids=prompts(**which), sampling_params=params)
    return [(o.token_ids, o.logprobs) for o in outputs]


@pytest.fixture
def make_runner(make_llm, engine_env):
    def make(version, model=None, **args):
        for engine in make_llm.engines:  # the environment is frozen while one lives
            engine.shutdown()
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", {"v1": "0", "v2": "1"}[version])
        llm = make_llm(model, **args)
        assert type(runner_of(llm)).__module__.endswith(version)
        return llm

    return make


@pytest.mark.parametrize(("value", "cls"), [("0", v1), ("1", v2), (None, v2)])
def test_environment_chooses_the_runner_else_the_architecture(make_llm, engine_env, value, cls):
    if value is not None:
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", value)

    assert type(runner_of(make_llm())) is cls.GPUModelRunner


def test_runners_share_no_code_by_inheritance():
    assert v1.GPUModelRunner.__mro__ == (v1.GPUModelRunner, object)
    assert v2.GPUModelRunner.__mro__ == (v2.GPUModelRunner, object)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runners_and_offload_modes_agree_to_the_last_bit(
    make_runner, make_checkpoint, engine_env, dtype
):
    model, found = make_checkpoint(), {}
    for version in ("v1", "v2"):
        for name, args in OFFLOADS.items():
            llm = make_runner(version, model, dtype=dtype, max_num_batched_tokens=24, **args)
            found[version, name] = answers(llm)

    expected = found["v1", "none"]
    assert [key for key, value in found.items() if value != expected] == []


def test_chunks_and_batch_mates_do_not_change_greedy_tokens(make_runner, make_checkpoint):
    model = make_checkpoint()
    whole = answers(make_runner("v2", model))
    chunked = answers(make_runner("v2", model, max_num_batched_tokens=7, max_num_seqs=2))

    assert [tokens for tokens, _ in whole] == [tokens for tokens, _ in chunked]


def test_sampled_tokens_agree_between_runners(make_runner, make_checkpoint):
    model = make_checkpoint()
    params = SamplingParams(max_tokens=12, temperature=1.0, top_p=0.9, ignore_eos=True)

    first = answers(make_runner("v1", model), params)
    assert first == answers(make_runner("v2", model), params)
    greedy = answers(make_runner("v1", model), SamplingParams(max_tokens=12, ignore_eos=True))
    assert first != greedy


def test_slot_of_a_finished_request_is_clean_for_the_next(make_runner):
    llm = make_runner("v2", max_num_seqs=2)
    first = answers(llm)
    answers(llm, seed=1, lengths=(60, 50, 3))

    assert first == answers(llm)
    assert len(runner_of(llm).free_slots) == 2
    assert runner_of(llm).slots == {}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_tokens_do_not_depend_on_the_schedule(make_runner, make_checkpoint, version, schedule):
    model = make_checkpoint()
    offload = OFFLOADS["prefetch-ring"]
    plain = answers(make_runner(version, model))

    assert plain == answers(make_runner(version, model, schedule=schedule, **offload))


@pytest.mark.parametrize("module", [v1, v2])
def test_offloader_is_installed_and_finished_through_the_runners_own_names(
    make_runner, monkeypatch, module
):
    seen = []
    real_create, real_set, real_get = (
        module.create_offloader,
        module.set_offloader,
        module.get_offloader,
    )
    monkeypatch.setattr(
        module, "create_offloader", lambda c: (seen.append("create"), real_create(c))[1]
    )
    monkeypatch.setattr(module, "set_offloader", lambda o: (seen.append("set"), real_set(o))[1])
    monkeypatch.setattr(module, "get_offloader", lambda: (seen.append("get"), real_get())[1])
    make_runner(module.__name__[-2:], offload_group_size=2)

    assert seen == ["create", "set", "get", "get"]


def test_runner_that_never_installs_its_offloader_gives_equal_tokens(
    make_runner, make_checkpoint, monkeypatch
):
    model = make_checkpoint()
    plain = answers(make_runner("v2", model))
    monkeypatch.setattr(v2, "set_offloader", lambda offloader: None)
    llm = make_runner("v2", model, offload_group_size=2)

    assert plain == answers(llm)
    assert isinstance(get_offloader(), NoopOffloader)


def test_v2_warms_up_with_three_calls_and_no_real_request(make_runner, monkeypatch):
    steps, real = [], v2.GPUModelRunner.execute_model
    monkeypatch.setattr(
        v2.GPUModelRunner,
        "execute_model",
        lambda self, step, *rest: (steps.append(step), real(self, step, *rest))[1],
    )
    llm = make_runner("v2")

    assert [len(step.rows) for step in steps] == [1, 1, 0]
    assert [step.rows[0].num_tokens for step in steps[:2]] == [2, 1]
    assert runner_of(llm).slots == {}


def test_v2_keeps_requests_on_the_device_and_v1_does_not(make_runner):
    v2_runner = runner_of(make_runner("v2"))

    spaces = [v2_runner.device.space_of(tensor) for tensor in v2_runner.state.all]
    assert spaces == ["device"] * 3
    assert not hasattr(runner_of(make_runner("v1")), "state")


def test_v2_calls_out_of_order_are_noticed(make_runner):
    runner = runner_of(make_runner("v2"))
    new = v2.NewRequest(
        request_id="a", prompt_token_ids=(5,), sampling_params=SamplingParams(), block_ids=(1,)
    )
    row = v2.ScheduledRequest(request_id="a", start=0, num_tokens=1, samples=True)
    step = v2.SchedulerOutput(rows=(row,), new=(new,))
    runner.execute_model(step)

    with pytest.raises(AssertionError, match="must follow"):
        runner.execute_model(v2.SchedulerOutput(rows=(row,)))
    runner.sample_tokens()
    with pytest.raises(AssertionError, match="get_output"):
        runner.sample_tokens()


def test_forward_accepts_intermediate_tensors(make_runner):
    runner = runner_of(make_runner("v1"))
    ids = torch.tensor([4, 9])
    context = v1.build_context(
        torch.arange(2),
        torch.zeros((1, 1), dtype=torch.int64),
        num_tokens=[2],
        seq_lens=[2],
        block_size=16,
        window=None,
        dtype=torch.float32,
    )
    embedded = runner.device.launch(lambda: runner.model.model.embed_tokens.weight[ids])
    direct = runner.model(ids, torch.arange(2), context).result()
    given = runner.model(
        ids * 0, torch.arange(2), context, intermediate_tensors={"hidden_states": embedded}
    ).result()

    assert torch.equal(direct, given)


def test_v2_copy_back_waits_for_the_stream_that_samples(make_runner):
    llm = make_runner("v2")
    device, seen = runner_of(llm).device, []

    class Recorder:
        def __getattr__(self, name):
            return lambda *_: None

        def on_launch(self, work):
            seen.append(("launch", work.site))

        def on_copy(self, work):
            seen.append(("copy", work.site))

        def on_record(self, event, stream):
            seen.append(("record", stream.name))

        def on_wait(self, stream, event):
            seen.append(("wait", stream.name))

    device.observers.append(Recorder())
    answers(llm, SamplingParams(max_tokens=1), lengths=(3,))

    tail = seen[seen.index(("launch", "sampler")) :]
    expected = [("launch", "sampler"), ("record", "default"), ("wait", "output")]
    assert tail[:5] == [*expected, ("copy", "output"), ("record", "output")]
