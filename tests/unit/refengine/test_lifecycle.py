import pytest
import torch
from safetensors.torch import save_file

from harness.observe.ordering import OrderingRecorder
from harness.refengine import LLM, ConfigError, ForwardError, OutOfDeviceMemoryError, SamplingParams
from harness.refengine.offloader import NoopOffloader, get_offloader
from harness.refengine.scheduler import Request

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2)
PROMPTS = [[5, 9, 17, 3], [7] * 11, [100, 4]]
OFFLOADS = {
    "none": {},
    "uva": {"cpu_offload_gb": 1},
    "uva-copy": {"cpu_offload_gb": 1},
    "prefetch": {"offload_group_size": 1, "offload_prefetch_step": 3},
    "prefetch-half": {"offload_group_size": 2, "offload_prefetch_step": 1},
}
EVERYWHERE = pytest.mark.parametrize(
    ("runner", "mode"), [(runner, mode) for runner in ("v1", "v2") for mode in OFFLOADS]
)
SOME = pytest.mark.parametrize(
    ("runner", "mode"), [("v1", "uva-copy"), ("v1", "prefetch"), ("v2", "uva"), ("v2", "prefetch")]
)
PATCHED = ("model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight")


@pytest.fixture
def weights(make_checkpoint, make_llm):
    """`weights(seed)` -> folder of a checkpoint with the small model's shapes."""
    made = {}

    def make(seed):
        if seed not in made:
            folder = make_checkpoint()
            llm = make_llm(folder, seed=seed)
            named = model_of(llm).named_parameters()
            save_file(
                {name: param.data.clone() for name, param in named}, f"{folder}/w.safetensors"
            )
            llm.shutdown()
            made[seed] = folder
        return made[seed]

    return make


@pytest.fixture
def make(make_llm, engine_env, weights):
    """`make(runner, mode, seed)` -> an engine on the seed's checkpoint."""

    def make_engine(runner, mode, seed=1, **args):
        folder = weights(seed)
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", {"v1": "0", "v2": "1"}[runner])
        engine_env.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", str(int(mode == "uva-copy")))
        args = {"load_format": "auto", **OFFLOADS[mode], **args}
        return make_llm(folder, **args)

    return make_engine


def worker_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def model_of(llm):
    return worker_of(llm).model_runner.model


def answers(llm):
    outputs = llm.generate(prompt_token_ids=PROMPTS, sampling_params=PARAMS)
    return [(o.token_ids, o.logprobs) for o in outputs]


def in_use(llm):
    stats = worker_of(llm).memory_stats()
    return {space: stats[space]["current"] for space in ("device", "pinned", "host")}


def left(llm):
    return [llm.left_behind[space]["current"] for space in ("device", "pinned", "host")]


def patches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(1024, generator=generator)[:300]
    return {name: (places, torch.randn(300, generator=generator)) for name in PATCHED}


@EVERYWHERE
def test_reload_brings_the_other_checkpoint_and_leaves_derived_tensors(make, runner, mode):
    fresh = make(runner, "none", seed=2)
    other = answers(fresh)
    fresh.shutdown()
    llm = make(runner, mode, seed=1)
    before, rotary = answers(llm), model_of(llm).rotary.clone()
    used = in_use(llm)

    llm.reload_weights(fresh.config.model)

    assert before != other
    assert [answers(llm) for _ in range(3)] == [other] * 3  # more than a turn of the ring
    llm.reload_weights(llm.config.model)
    assert answers(llm) == before
    assert torch.equal(rotary, model_of(llm).rotary)
    assert in_use(llm) == used


@SOME
def test_reload_writes_the_bytes_of_record(make, weights, runner, mode):
    llm = make(runner, mode)
    resident = make(runner, "none", seed=2)
    llm.reload_weights(weights(2))

    masters = worker_of(llm).model_runner.offloader.masters()
    expected = dict(model_of(resident).named_parameters())
    for name, param in model_of(llm).named_parameters():
        assert torch.equal(masters.get(param, param.data), expected[name].data)
    assert len(masters) == sum(".layers." in name for name in expected)


@SOME
def test_reload_that_fails_half_way_computes_no_more_until_one_succeeds(
    make, weights, tmp_path, runner, mode
):
    llm = make(runner, mode)
    before = answers(llm)
    params = {
        n: p.data.clone() for n, p in model_of(make(runner, "none", seed=2)).named_parameters()
    }
    params["model.norm.weight"] = torch.ones(3)
    save_file(params, tmp_path / "bad.safetensors")

    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        llm.reload_weights(tmp_path / "nowhere")
    assert answers(llm) == before
    with pytest.raises(ConfigError, match=r"model.norm.weight.*shape"):
        llm.reload_weights(tmp_path)
    with pytest.raises(ConfigError, match=r"hold nothing.*reload_weights"):
        answers(llm)
    llm.reload_weights(weights(1))
    assert answers(llm) == before


def test_patch_gives_both_runners_and_every_mode_the_same_answers(make):
    found = {}
    for runner in ("v1", "v2"):
        for mode in OFFLOADS:
            llm = make(runner, mode)
            plain = answers(llm)
            worker_of(llm).apply_sparse_weight_patches(patches())
            found[runner, mode] = [answers(llm) for _ in range(3)]
            llm.shutdown()

    assert [key for key, value in found.items() if value != found["v1", "none"]] == []
    assert found["v1", "none"] == [found["v1", "none"][0]] * 3
    assert found["v1", "none"][0] != plain


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"lm_tail": (torch.tensor([0]), torch.ones(1))}, "no such parameter"),
        ({PATCHED[0]: (torch.tensor([0.0]), torch.ones(1))}, "must be int64"),
        ({PATCHED[0]: (torch.tensor([0, 1]), torch.ones(1))}, "2. indices for .1. values"),
        ({PATCHED[0]: (torch.tensor([-1]), torch.ones(1))}, "within 0"),
        ({PATCHED[0]: (torch.tensor([2048]), torch.ones(1))}, "within 0..2047"),
    ],
)
def test_patch_that_does_not_fit_writes_nothing(make, patch, text):
    llm = make("v2", "prefetch")
    before = answers(llm)

    with pytest.raises(ConfigError, match=text):
        worker_of(llm).apply_sparse_weight_patches({**patches(), **patch})
    assert answers(llm) == before


@EVERYWHERE
def test_sleep_1_keeps_weights_in_host_memory_and_wakes_the_same(make, runner, mode):
    llm = make(runner, mode)
    before, used = answers(llm), in_use(llm)
    kinds = worker_of(llm).memory_stats()["device"]["by_kind"]

    llm.sleep(level=1)

    freed = sum(kinds.get(kind, 0) for kind in ("weights", "buffer_pool", "kv_cache"))
    resident = kinds["weights"]
    expected = {"device": used["device"] - freed, "host": used["host"] + resident}
    assert in_use(llm) == {**used, **expected}
    with pytest.raises(ConfigError, match="asleep"):
        answers(llm)
    llm.wake_up()
    assert in_use(llm) == used
    assert [answers(llm), answers(llm)] == [before] * 2


@EVERYWHERE
def test_sleep_2_discards_weights_wherever_they_are(make, runner, mode):
    llm = make(runner, mode)
    before, used = answers(llm), in_use(llm)
    kinds = worker_of(llm).memory_stats()["device"]["by_kind"]

    llm.sleep(level=2)
    freed = sum(kinds.get(kind, 0) for kind in ("weights", "buffer_pool", "kv_cache"))
    assert in_use(llm)["device"] == used["device"] - freed
    by_kind = worker_of(llm).memory_stats()
    assert [by_kind[space]["by_kind"].get("weights") for space in ("pinned", "host")] == [None] * 2
    llm.wake_up(["weights"])
    llm.wake_up(["kv_cache"])
    assert in_use(llm) == used
    with pytest.raises(ConfigError, match="hold nothing"):
        answers(llm)
    with pytest.raises(ConfigError, match="hold nothing"):
        worker_of(llm).apply_sparse_weight_patches(patches())
    assert not worker_of(llm).has_weights
    llm.reload_weights(llm.config.model)
    assert worker_of(llm).has_weights
    assert [answers(llm), answers(llm)] == [before] * 2


def test_memory_that_woke_without_content_holds_no_number(make):
    llm = make("v1", "none")
    llm.sleep(level=2)
    llm.wake_up(["weights"])

    assert all(param.data.isnan().all() for param in model_of(llm).parameters())


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([("sleep", 3)], "level=3 must be 1 or 2"),
        ([("sleep", 1), ("sleep", 1)], "already asleep"),
        ([("sleep", 1), ("wake_up", ["kv_cache"]), ("sleep", 2)], "weights already asleep"),
        ([("wake_up", None)], "the engine is awake"),
        ([("sleep", 1), ("wake_up", None), ("wake_up", None)], "the engine is awake"),
        ([("sleep", 1), ("wake_up", ["cache"])], "'cache' must be one of weights, kv_cache"),
        ([("sleep", 1), ("wake_up", [])], "at least one tag"),
        (
            [("sleep", 1), ("wake_up", ["weights"]), ("wake_up", ["weights"])],
            "'weights': it is awake",
        ),
        ([("sleep", 1), ("reload_weights", None)], "the weights are asleep"),
        ([("sleep", 2), ("wake_up", ["kv_cache"]), ("reload_weights", None)], "weights are asleep"),
        ([("sleep", 1), ("wake_up", ["weights"]), ("generate", None)], "asleep .kv_cache."),
        ([("sleep", 2), ("wake_up", None), ("generate", None)], "hold nothing"),
    ],
)
def test_what_cannot_be_done_while_asleep_is_refused_with_a_reason(make, calls, text):
    llm = make("v2", "prefetch")
    before, last = answers(llm), len(calls) - 1

    for number, (name, value) in enumerate(calls):
        arg = llm.config.model if name == "reload_weights" else value
        call = answers if name == "generate" else getattr(type(llm), name)
        rest = () if name == "generate" else (arg,)
        if number < last:
            call(llm, *rest)
            continue
        with pytest.raises(ConfigError, match=text):
            call(llm, *rest)
    if worker_of(llm).is_sleeping:
        llm.wake_up()
    llm.reload_weights(llm.config.model)
    assert answers(llm) == before


def test_wake_up_without_room_stays_asleep_and_takes_nothing(make):
    llm = make("v1", "none", device_memory_bytes=600_000)
    before = answers(llm)
    llm.sleep()
    device = worker_of(llm).device
    taken = device.empty((550_000,), torch.uint8)
    asleep = in_use(llm)

    with pytest.raises(OutOfDeviceMemoryError):
        llm.wake_up()
    assert in_use(llm) == asleep
    del taken
    llm.wake_up()
    assert answers(llm) == before


def test_shutdown_while_asleep_returns_every_byte(make):
    for level in (1, 2):
        llm = make("v2", "prefetch-half")
        llm.sleep(level)
        llm.shutdown()

        assert left(llm) == [0, 0, 0]


@EVERYWHERE
@pytest.mark.parametrize("layer", [0, 2])
def test_forward_that_fails_drops_its_requests_and_the_next_is_right(make, runner, mode, layer):
    llm = make(runner, mode)
    before, used = answers(llm), in_use(llm)
    core = llm.llm_engine.engine_core.engine_core
    free = core.scheduler.blocks.num_free
    worker_of(llm).fail_next_forward(layer)

    with pytest.raises(ForwardError, match=rf"layers\.{layer}\.mlp"):
        answers(llm)

    assert not core.has_work
    assert core.scheduler.blocks.num_free == free
    assert in_use(llm) == used
    runner_ = worker_of(llm).model_runner
    if runner == "v2":
        assert runner_.slots == {}
        assert sorted(runner_.free_slots) == list(range(llm.config.max_num_seqs))
    else:
        assert runner_.requests == {}
    assert [answers(llm) for _ in range(3)] == [before] * 3


@EVERYWHERE
def test_failed_forward_and_shutdown_free_every_byte_though_the_error_is_kept(make, runner, mode):
    llm = make(runner, mode)
    worker_of(llm).fail_next_forward(3)
    with pytest.raises(ForwardError) as kept:
        answers(llm)
    llm.shutdown()

    assert left(llm) == [0, 0, 0]
    assert "layers.3" in str(kept.value)


def test_layer_to_fail_must_be_one(make):
    with pytest.raises(ConfigError, match=r"layer=4 must be within 0\.\.3"):
        worker_of(make("v1", "none")).fail_next_forward(4)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_request_aborted_in_its_last_step_is_freed_once_and_harms_nobody(make, runner):
    llm = make(runner, "prefetch")
    before = answers(llm)
    core = llm.llm_engine.engine_core.engine_core
    free = core.scheduler.blocks.num_free

    aborted, *others = llm.generate(
        prompt_token_ids=PROMPTS, sampling_params=PARAMS, abort_at_end=[0]
    )

    assert (aborted.finish_reason, aborted.token_ids) == ("abort", before[0][0][:-1])
    assert [(o.token_ids, o.logprobs) for o in others] == before[1:]
    assert [o.finish_reason for o in others] == ["length"] * 2
    assert core.scheduler.blocks.num_free == free
    assert worker_of(llm).model_runner.__dict__.get("slots", {}) == {}
    assert answers(llm) == before


def test_abort_ends_a_waiting_request_and_knows_no_ended_one(make):
    llm = make("v1", "none", max_num_seqs=1)
    answer = llm.generate(prompt_token_ids=PROMPTS[:1], sampling_params=PARAMS)[0]
    core = llm.llm_engine.engine_core.engine_core

    assert core.scheduler.abort(answer.request_id) is None
    requests = [
        Request(request_id=name, prompt_token_ids=[4, 5], sampling_params=PARAMS)
        for name in ("a", "b")
    ]
    for request in requests:
        core.add_request(request)
    core.step()
    assert core.scheduler.abort("b") is requests[1]
    assert core.scheduler.abort("a") is requests[0]
    assert [r.finish_reason for r in requests] == ["abort"] * 2
    core.step()
    assert not core.has_work


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize(
    ("mine", "others"),
    [("prefetch", "uva"), ("uva", "prefetch"), ("uva-copy", "none"), ("none", "prefetch-half")],
)
def test_engine_beside_disturbs_nothing_of_the_first(make, runner, mine, others):
    first = make(runner, mine)
    before, used, offloader = answers(first), in_use(first), get_offloader()
    env = worker_of(first).env

    second = make(runner, others)
    assert get_offloader() is not offloader
    assert worker_of(first).model_runner.offloader is offloader
    assert [answers(second), answers(first), answers(second)] == [before] * 3
    second.shutdown()
    assert left(second) == [0, 0, 0]

    assert get_offloader() is offloader
    assert worker_of(first).env == env
    assert answers(first) == before
    first.reload_weights(first.config.model)
    assert answers(first) == before
    assert in_use(first) == used
    first.shutdown()
    assert left(first) == [0, 0, 0]
    assert isinstance(get_offloader(), NoopOffloader)


def test_first_engine_may_end_before_the_second(make):
    first, second = make("v1", "prefetch"), make("v2", "uva")
    before, offloader = answers(first), get_offloader()
    first.shutdown()

    assert get_offloader() is offloader
    assert left(first) == [0, 0, 0]
    assert answers(second) == before
    second.shutdown()
    assert isinstance(get_offloader(), NoopOffloader)


def test_flags_flipped_between_two_engines_are_read_anew(make, engine_env):
    first = make("v1", "uva")
    assert worker_of(first).model_runner.offloader.uva_offloading
    second = make("v2", "uva-copy")

    assert not worker_of(second).model_runner.offloader.uva_offloading
    assert worker_of(first).env["VLLM_USE_V2_MODEL_RUNNER"] is False
    assert worker_of(second).env["VLLM_USE_V2_MODEL_RUNNER"] is True
    engine_env.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY", "1")
    third = make("v2", "prefetch")
    assert not worker_of(third).model_runner.offloader.pin_memory
    assert worker_of(first).model_runner.offloader.pin_memory


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_all_of_it_works_with_the_core_in_a_process_of_its_own(make, engine_env, weights, runner):
    other, same = answers_of(make(runner, "none", seed=2)), weights(1)
    engine_env.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    llm = make(runner, "prefetch")
    before = answers(llm)
    llm.reload_weights(weights(2))
    reloaded = answers(llm)
    llm.sleep(2)
    with pytest.raises(ConfigError, match="asleep"):
        answers(llm)
    llm.wake_up()
    llm.reload_weights(same)
    again = answers(llm)
    llm.collective_rpc("fail_next_forward", (1,))
    with pytest.raises(ForwardError):
        answers(llm)
    after = answers(llm)
    first = llm.generate(prompt_token_ids=PROMPTS, sampling_params=PARAMS, abort_at_end=[0])[0]
    llm.shutdown()

    assert (reloaded, again, after) == (other, before, before)
    assert first.finish_reason == "abort"
    assert left(llm) == [0, 0, 0]


def answers_of(llm: LLM):
    found = answers(llm)
    llm.shutdown()
    return found


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["none", "uva-copy", "prefetch"])
def test_graphs_survive_a_reload_a_sleep_and_a_failure(make, weights, runner, mode):
    other = answers_of(make(runner, "none", seed=2))
    llm = make(runner, mode, enforce_eager=False)
    before = answers(llm)
    llm.reload_weights(weights(2))
    reloaded = [answers(llm), answers(llm)]
    llm.sleep(1)
    llm.wake_up()
    awake = answers(llm)
    llm.reload_weights(weights(1))
    worker_of(llm).fail_next_forward(2)
    with pytest.raises(ForwardError):
        answers(llm)

    assert [*reloaded, awake] == [other] * 3
    assert [answers(llm), answers(llm)] == [before] * 2
    llm.shutdown()
    assert left(llm) == [0, 0, 0]


@pytest.mark.parametrize("does_wait", [True, False])
def test_reload_that_does_not_wait_for_copies_under_way_is_seen_as_a_race(
    make, weights, monkeypatch, does_wait
):
    llm, other = make("v1", "prefetch"), weights(2)
    device = worker_of(llm).device
    recorder = OrderingRecorder(device.allocation_of)
    device.observers.append(recorder)
    answers(llm)
    if not does_wait:
        monkeypatch.setattr(device, "synchronize", lambda: None)
    llm.reload_weights(other)
    answers(llm)

    sites = {race.conflict.second.site.partition(".")[0] for race in recorder.races.values()}
    assert sites == (set() if does_wait else {"reload"})
    monkeypatch.undo()
