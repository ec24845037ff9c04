"""Pipeline stages: the same answers as one, each with its own layers, device and offloader."""

import traceback

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.plan.ranks import stage_layers
from harness.refengine import (
    ConfigError,
    ForwardError,
    OutOfDeviceMemoryError,
    SamplingParams,
    UnsupportedSettingError,
)
from harness.refengine.device import get_current_device
from harness.refengine.engine_core import Worker
from harness.refengine.offloader import NoopOffloader, get_offloader
from harness.refengine.stage import Stage

LAYERS = 5
ROOM = 10_000_000
PARAMS = SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2)
PROMPTS = [[5, 9, 17, 3], [7] * 11, [100, 4]]
OFFLOADS = {
    "none": {},
    "uva": {"cpu_offload_gb": 1},
    "uva-part": {"cpu_offload_gb": 30_000 / 1024**3},
    "uva-copy": {"cpu_offload_gb": 1},
    "prefetch": {"offload_group_size": 1, "offload_prefetch_step": 2},
    "prefetch-half": {"offload_group_size": 2, "offload_prefetch_step": 1},
}
RUNNERS = pytest.mark.parametrize("runner", ["v1", "v2"])
PATCHED = ("model.layers.0.mlp.down_proj.weight", "model.layers.4.self_attn.o_proj.weight")


@pytest.fixture
def weights(make_checkpoint, make_llm):
    """`weights(seed, **changes to the config)` -> folder of a checkpoint of five layers."""
    made = {}

    def make(seed=1, **changes):
        key = (seed, *changes.items())
        if key not in made:
            folder = make_checkpoint(num_hidden_layers=LAYERS, **changes)
            llm = make_llm(folder, seed=seed)
            (worker,) = workers_of(llm)
            named = worker.model_runner.model.named_parameters()
            save_file({n: p.data.clone() for n, p in named}, f"{folder}/w.safetensors")
            llm.shutdown()
            made[key] = folder
        return made[key]

    return make


@pytest.fixture
def make(make_llm, engine_env, weights):
    """`make(runner, mode, stages)` -> an engine on the checkpoint."""

    def make_engine(runner, mode="none", stages=2, *, folder=None, **args):
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", {"v1": "0", "v2": "1"}[runner])
        engine_env.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", str(int(mode == "uva-copy")))
        args = {"load_format": "auto", **OFFLOADS[mode], **args}
        return make_llm(folder or weights(), pipeline_parallel_size=stages, **args)

    return make_engine


def workers_of(llm):
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    return [executor.driver_worker.worker, *(each.worker for each in executor.workers)]


def answers(llm):
    outputs = llm.generate(prompt_token_ids=PROMPTS, sampling_params=PARAMS)
    return [(o.token_ids, o.logprobs) for o in outputs]


def answers_of(llm):
    found = answers(llm)
    llm.shutdown()
    return found


def names(worker):
    return [name for name, _ in worker.model_runner.model.named_parameters()]


def record_of(worker):
    """Name -> bytes of record."""
    masters = worker.model_runner.offloader.masters()
    named = worker.model_runner.model.named_parameters()
    return {name: masters.get(param, param.data).clone() for name, param in named}


def in_use(worker):
    return worker.memory_stats()["device"]["current"]


def left(llm):
    return [llm.left_behind[space]["current"] for space in ("device", "pinned", "host")]


@pytest.mark.parametrize("mode", OFFLOADS)
@RUNNERS
def test_answers_are_those_of_one_stage(make, runner, mode):
    alone = answers_of(make(runner, stages=1))

    for stages in (2, 3, LAYERS):
        llm = make(runner, mode, stages)
        assert [answers(llm) for _ in range(2)] == [alone] * 2
        llm.shutdown()
        assert left(llm) == [0, 0, 0]


@RUNNERS
def test_long_prompts_in_chunks_and_requests_that_wait_are_answered_alike(make, runner):
    small = {"max_num_batched_tokens": 4, "max_num_seqs": 2}
    llm = make(runner, "prefetch", 3, **small)

    assert answers(llm) == answers(make(runner, stages=1, **small))


@RUNNERS
@pytest.mark.parametrize("schedule", ["copy_late", "compute_late", "seeded"])
def test_no_schedule_of_the_devices_changes_the_answers(make, runner, schedule):
    alone = answers(make(runner, stages=1))

    assert answers(make(runner, "prefetch", schedule=schedule)) == alone


@pytest.mark.parametrize("num_layers", [1, 2, 5, 7, 8, 11])
def test_layers_are_spread_as_computed(num_layers):
    for stages in range(1, num_layers + 1):
        spread = [Stage(rank=r, num_stages=stages).layers(num_layers) for r in range(stages)]

        assert [stage_layers(num_layers, r, stages) for r in range(stages)] == spread
        assert [*range(num_layers)] == [layer for part in spread for layer in part]


@pytest.mark.parametrize("is_tied", [False, True])
def test_each_stage_holds_its_own_part_under_the_names_of_the_whole(make, weights, is_tied):
    folder = weights(tie_word_embeddings=is_tied)
    whole = names(workers_of(make("v2", stages=1, folder=folder))[0])

    first, last = map(names, workers_of(make("v2", "uva", folder=folder)))

    held = [[n for n in whole if f".layers.{i}." in n] for i in range(LAYERS)]
    embed, outer = "model.embed_tokens.weight", ["model.norm.weight"]
    outer += [] if is_tied else ["lm_head.weight"]
    assert first == [embed, *held[0], *held[1], *held[2]]
    assert last == [*([embed] if is_tied else []), *held[3], *held[4], *outer]


def test_tied_embedding_is_loaded_on_both_ends(make, weights):
    folder = weights(tie_word_embeddings=True)
    first, last = map(record_of, workers_of(make("v1", "prefetch", folder=folder)))
    alone = answers(make("v1", stages=1, folder=folder))

    assert torch.equal(first["model.embed_tokens.weight"], last["model.embed_tokens.weight"])
    assert answers(make("v1", "prefetch", folder=folder)) == alone


@RUNNERS
def test_groups_and_budgets_are_counted_within_a_stage(make, runner):
    ring = [w.model_runner.offloader for w in workers_of(make(runner, "prefetch-half"))]
    budget = [w.model_runner.offloader for w in workers_of(make(runner, "uva-part"))]

    assert [[m.module_index for m in each.module_offloaders] for each in ring] == [[1], [1]]
    copied = [[*each.host_copies] for each in budget]
    assert copied[0] == copied[1]
    assert [len(each) for each in copied] == [4, 4]  # the fourth one overshoots the budget
    assert [m.module.attn_site for each in ring for m in each.module_offloaders] == [
        "model.layers.1.self_attn",
        "model.layers.4.self_attn",
    ]


@RUNNERS
def test_each_stage_has_a_device_and_an_offloader_of_its_own(make, runner):
    workers = workers_of(make(runner, "prefetch", 3))

    assert len({id(w.device) for w in workers}) == 3
    for worker in workers:
        offloader = worker.model_runner.offloader
        assert type(offloader).__name__ == "PrefetchOffloader"
        assert offloader.device is worker.device
        assert {worker.device.space_of(p.data) for p in offloader.masters()} == {"device"}
        assert {worker.device.space_of(copy) for copy in offloader.masters().values()} == {"pinned"}
    assert [w.rank for w in workers] == [0, 1, 2]


def test_two_engines_keep_their_own_and_the_last_one_alive_is_current(make):
    first, second = make("v1", "prefetch"), make("v2", "uva", 3)
    offloader, device = get_offloader(), get_current_device()
    before = answers(first)
    assert offloader is workers_of(second)[-1].model_runner.offloader

    assert answers(second) == before
    second.shutdown()
    mine = workers_of(first)[-1]
    assert (get_offloader(), get_current_device()) == (mine.model_runner.offloader, mine.device)
    assert device is not mine.device
    first.reload_weights(first.config.model)
    assert answers(first) == before
    first.shutdown()
    assert left(first) == left(second) == [0, 0, 0]
    assert isinstance(get_offloader(), NoopOffloader)


@RUNNERS
def test_blocks_are_those_of_the_stage_with_the_least_room(make, runner):
    llm = make(runner, stages=2, kv_cache_memory_bytes=64 * 2 * 16 * 16 * 4 * 3)
    caches = [worker.model_runner.kv_caches for worker in workers_of(llm)]

    assert [len(each) for each in caches] == [3, 2]  # layers
    # the first stage holds three layers' caches and has room for 64 blocks, the second for 96
    assert {cache.shape[1] for each in caches for cache in each} == {64}
    assert llm.llm_engine.engine_core.engine_core.model_executor.num_blocks == 64


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ({"stages": 0}, ConfigError, "pipeline_parallel_size=0 must be an integer >= 1"),
        ({"stages": True}, ConfigError, "pipeline_parallel_size=True must be an integer >= 1"),
        ({"stages": 6}, ConfigError, "pipeline_parallel_size=6 must be <= num_hidden_layers=5"),
        (
            {"stages": 2, "enforce_eager": False},
            UnsupportedSettingError,
            "enforce_eager=False is not supported with pipeline_parallel_size=2",
        ),
    ],
)
def test_what_cannot_be_spread_is_refused(make, args, error, text):
    with pytest.raises(error, match=text) as caught:
        make("v1", **args)

    assert "\n" not in str(caught.value)


@RUNNERS
def test_a_last_stage_without_room_leaves_nothing_of_the_first(make, weights, monkeypatch, runner):
    weights()
    devices, load = [], Worker.load_model

    def load_model(worker):
        devices.append(worker.device)
        num_blocks = load(worker)
        if worker.rank:
            raise OutOfDeviceMemoryError("of rank 1")
        return num_blocks

    monkeypatch.setattr(Worker, "load_model", load_model)
    with pytest.raises(OutOfDeviceMemoryError, match="of rank 1") as caught:
        make(runner, "prefetch")

    traceback.clear_frames(caught.tb)
    assert isinstance(get_offloader(), NoopOffloader)
    assert [each.memory_stats()["pinned"]["current"] for each in devices] == [0, 0]
    with pytest.raises(RuntimeError, match="no current device"):
        get_current_device()


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", ["model.layers.0", "model.layers.4", "model.norm"])
def test_a_tensor_too_few_is_refused_whichever_stage_holds_it(make, weights, name, stages):
    file = f"{weights()}/w.safetensors"
    tensors = load_file(file)
    lost = next(n for n in tensors if n.startswith(name))
    del tensors[lost]
    save_file(tensors, file)

    with pytest.raises(ConfigError, match=f"parameter '{lost}' is not filled"):
        make("v1", stages=stages)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.layers.5.mlp.down_proj.weight", "belongs to no parameter"),
        ("model.layers.4.mlp.down_proj.weight", r"has shape \[1\], the model needs \[32, 64\]"),
    ],
)
def test_a_tensor_of_another_stage_that_does_not_fit_is_refused(make, weights, name, text):
    file = f"{weights()}/w.safetensors"
    save_file({**load_file(file), name: torch.zeros(1)}, file)

    with pytest.raises(ConfigError, match=text):
        make("v1")


def test_random_weights_are_the_same_however_they_are_spread(make):
    alone = record_of(workers_of(make("v1", stages=1, load_format="dummy", seed=3))[0])
    parts = [record_of(w) for w in workers_of(make("v1", "uva", 3, load_format="dummy", seed=3))]

    spread = {name: content for part in parts for name, content in part.items()}
    assert spread.keys() == alone.keys()
    assert all(torch.equal(spread[name], alone[name]) for name in alone)


@pytest.mark.parametrize("mode", ["uva", "uva-copy", "prefetch"])
@RUNNERS
def test_every_rank_lives_through_the_lifecycle(make, weights, runner, mode):
    other = answers_of(make(runner, stages=1, folder=weights(2)))
    llm = make(runner, mode)
    before = answers(llm)
    assert before != other

    llm.reload_weights(weights(2))
    assert answers(llm) == other
    llm.sleep(1)
    assert {worker.is_sleeping for worker in workers_of(llm)} == {True}
    with pytest.raises(ConfigError, match="asleep"):
        answers(llm)
    llm.wake_up()
    assert answers(llm) == other
    llm.sleep(2)
    llm.wake_up()
    with pytest.raises(ConfigError, match="reload_weights"):
        answers(llm)
    llm.reload_weights(weights(1))
    assert answers(llm) == before
    llm.shutdown()
    assert left(llm) == [0, 0, 0]


@RUNNERS
@pytest.mark.parametrize("tags", [None, ["weights", "kv_cache"]])
def test_what_did_not_fit_in_a_later_rank_stays_asleep_and_wakes_later(make, runner, tags):
    llm = make(runner, "prefetch", device_memory_bytes=ROOM)
    before, used = answers(llm), [in_use(worker) for worker in workers_of(llm)]
    first, last = workers_of(llm)
    llm.sleep(1)
    taken = last.device.empty((ROOM - in_use(last),), torch.uint8)

    for _ in range(2):
        with pytest.raises(OutOfDeviceMemoryError):
            llm.wake_up(tags)
        assert [first.sleeper.asleep, last.sleeper.asleep] == [[], ["kv_cache", "weights"]]
    with pytest.raises(ConfigError, match="asleep"):
        answers(llm)
    del taken
    llm.wake_up(tags)

    assert [in_use(worker) for worker in workers_of(llm)] == used
    assert [answers(llm) for _ in range(2)] == [before] * 2
    with pytest.raises(ConfigError, match="the engine is awake"):
        llm.wake_up(tags)


@pytest.mark.parametrize("stages", [1, 2])
@RUNNERS
def test_weights_that_woke_before_the_cache_did_not_fit_are_whole(make, runner, stages):
    llm = make(runner, "prefetch", stages, device_memory_bytes=ROOM)
    before, last = answers(llm), workers_of(llm)[-1]
    free = ROOM - in_use(last)
    llm.sleep(1)
    taken = last.device.empty((free + 1,), torch.uint8)

    with pytest.raises(OutOfDeviceMemoryError):
        llm.wake_up()
    assert last.sleeper.asleep == ["kv_cache"]
    del taken
    llm.wake_up()

    assert [answers(llm) for _ in range(2)] == [before] * 2


def test_a_tag_is_refused_only_where_it_is_asleep_in_no_rank(make):
    llm = make("v1", "uva")
    first, last = workers_of(llm)
    llm.sleep(1)
    first.wake_up(["weights"])

    with pytest.raises(ConfigError, match="tag 'cache' must be one of"):
        llm.wake_up(["weights", "cache"])
    llm.wake_up(["weights"])
    assert [first.sleeper.asleep, last.sleeper.asleep] == [["kv_cache"]] * 2
    with pytest.raises(ConfigError, match="'weights': it is awake"):
        llm.wake_up(["weights"])


def test_nothing_is_computed_while_one_rank_is_asleep(make):
    llm = make("v1", "uva")
    workers_of(llm)[1].sleep(1)

    with pytest.raises(ConfigError, match="asleep"):
        answers(llm)


@pytest.mark.parametrize("layer", range(LAYERS))
@RUNNERS
def test_a_forward_that_fails_in_any_rank_leaves_all_as_they_were(make, runner, layer):
    llm = make(runner, "prefetch", offload_prefetch_step=1)
    before = answers(llm)

    llm.collective_rpc("fail_next_forward", (layer,))
    with pytest.raises(ForwardError, match=f"model.layers.{layer}.mlp"):
        answers(llm)

    runners = [worker.model_runner for worker in workers_of(llm)]
    assert [len(each.requests if runner == "v1" else each.slots) for each in runners] == [0, 0]
    assert [answers(llm), answers(llm)] == [before] * 2
    with pytest.raises(ConfigError, match=r"layer=5 must be within 0\.\.4"):
        llm.collective_rpc("fail_next_forward", (LAYERS,))


@RUNNERS
def test_a_request_aborted_at_its_last_step_leaves_its_slot_to_the_next(make, runner):
    llm = make(runner, "prefetch", max_num_seqs=3)
    before = answers(llm)

    llm.generate(prompt_token_ids=PROMPTS, sampling_params=PARAMS, abort_at_end=[0, 2])

    assert answers(llm) == before


@pytest.mark.parametrize("mode", ["none", "uva", "prefetch"])
@RUNNERS
def test_a_patch_reaches_the_rank_that_holds_it(make, runner, mode):
    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(512, generator=generator)[:200]
    patch = {name: (places, torch.randn(200, generator=generator)) for name in PATCHED}
    alone, llm = make(runner, stages=1), make(runner, mode)
    before = answers(alone)

    for each in (alone, llm):
        each.collective_rpc("apply_sparse_weight_patches", (patch,))

    assert before != answers(alone) == answers(llm)
    held = [record_of(worker) for worker in workers_of(llm)]
    for part, (name, (_, values)) in zip(held, patch.items(), strict=True):
        assert torch.equal(part[name].view(-1)[places], values)


@pytest.mark.parametrize(
    ("name", "place", "text"),
    [
        ("model.layers.5.mlp.down_proj.weight", 0, "no such parameter"),
        ("model.layers.4.mlp.down_proj.weight", 2048, r"must be within 0\.\.2047"),
    ],
)
def test_a_patch_that_does_not_fit_one_rank_is_written_in_none(make, name, place, text):
    llm = make("v1", "uva")
    before = record_of(workers_of(llm)[0])
    patch = {
        PATCHED[0]: (torch.tensor([0]), torch.tensor([9.0])),
        name: (torch.tensor([place]), torch.tensor([9.0])),
    }

    with pytest.raises(ConfigError, match=text):
        llm.collective_rpc("apply_sparse_weight_patches", (patch,))

    after = record_of(workers_of(llm)[0])
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_what_is_left_is_summed_over_ranks(make):
    llm = make("v1", "prefetch", 3)
    kept = [record_of(w) and next(iter(w.model_runner.kv_caches)) for w in workers_of(llm)]
    llm.shutdown()

    assert llm.left_behind["device"]["by_kind"] == {"kv_cache": sum(t.nbytes for t in kept)}
    assert left(llm)[0] == sum(t.nbytes for t in kept)


@RUNNERS
def test_core_in_a_process_of_its_own_answers_the_same(make, engine_env, runner):
    alone = answers_of(make(runner, stages=1))
    engine_env.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    llm = make(runner, "prefetch")

    assert answers(llm) == alone
    assert len(llm.collective_rpc("memory_stats")) == 2
    llm.shutdown()
    assert left(llm) == [0, 0, 0]
