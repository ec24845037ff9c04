"""`enforce_eager=False`: decode steps are recorded and replayed, and nothing else changes."""

import random

import pytest
import torch

from harness.observe.ordering import OrderingRecorder
from harness.observe.weights import WeightRecorder
from harness.refengine import SamplingParams
from harness.refengine.device.isolation import CaptureIsolationError
from harness.refengine.offloader.module_offloader import ModuleOffloader
from harness.refengine.offloader.prefetch import PrefetchOffloader

MODES = {
    "none": {},
    "uva": {"cpu_offload_gb": 1},
    "uva-copy": {"cpu_offload_gb": 1},
    "uva-copy-part": {"cpu_offload_gb": 60e-6},
    "prefetch": {"offload_group_size": 2, "offload_prefetch_step": 1},
    "prefetch-ring": {"offload_group_size": 1, "offload_prefetch_step": 3},
}
LAYER_BYTES = 4 * (32 * (64 + 32 + 2 * 64 + 64) + 2 * 32)


def worker_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def answers(llm, seed=0, lengths=(1, 5, 17, 40)):
    """Several generates, so that decode batches of several sizes occur, and again."""
    pick = random.Random(seed)
    found = []
    prompts = [[pick.randrange(3, 128) for _ in range(n)] for n in lengths]
    params = SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2)
    for ids in (prompts, prompts[:1], prompts[1:], prompts):
        outputs = llm.generate(prompt_token_ids=ids, sampling_params=params)
        found += [(o.token_ids, o.logprobs) for o in outputs]
    return found


@pytest.fixture
def start(make_llm, engine_env, make_checkpoint):
    """Start an engine after ending those before; its recorders are in `llm.ordering`, `.weights`"""
    model = make_checkpoint()

    def make(version, mode, *, enforce_eager=False, **args):
        for engine in make_llm.engines:
            engine.shutdown()
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", {"v1": "0", "v2": "1"}[version])
        is_copy = str(int(mode.startswith("uva-copy")))
        engine_env.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", is_copy)
        llm = make_llm(model, enforce_eager=enforce_eager, **MODES[mode], **args)
        device = worker_of(llm).device
        llm.ordering = OrderingRecorder(device.allocation_of)
        llm.weights = WeightRecorder("full")
        device.observers += [llm.ordering, llm.weights]
        return llm

    return make


def graphs_of(llm):
    return worker_of(llm).model_runner.graphs


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("mode", MODES)
def test_replays_compute_what_eager_steps_compute_from_the_same_reads(start, version, mode):
    eager = start(version, mode, enforce_eager=True)
    expected = answers(eager)
    graph = start(version, mode)

    assert answers(graph) == expected
    assert {1, 3, 4} <= set(graphs_of(graph).recorded)
    assert graphs_of(eager) is None
    assert {} == graph.ordering.races
    assert graph.ordering.num_pool_checked == eager.ordering.num_pool_checked
    seen, wanted = (
        {name: (reads.num_reads, set(reads.digests)) for name, reads in llm.weights.reads.items()}
        for llm in (graph, eager)
    )
    assert seen == wanted


@pytest.mark.parametrize("schedule", ["copy_late", "compute_late"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_adverse_schedule_changes_nothing(start, version, schedule):
    expected = answers(start(version, "none", enforce_eager=True))
    for mode in ("prefetch-ring", "uva-copy"):
        llm = start(version, mode, schedule=schedule)
        assert answers(llm) == expected
        assert {} == llm.ordering.races


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_each_batch_size_is_recorded_once_and_the_model_is_not_called_again(
    start, monkeypatch, version
):
    llm = start(version, "prefetch")
    first, calls = answers(llm), []
    recorded = dict(graphs_of(llm).recorded)
    layer = worker_of(llm).model_runner.model.model.layers[0]
    plain = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *a: (calls.append(1), plain(*a))[1])

    assert answers(llm) == first
    assert graphs_of(llm).recorded == recorded
    assert len(calls) == 3  # for prompts of more than one token; a single one is a decode step


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_chunk_of_a_prompt_in_the_batch_makes_the_step_eager(start, version):
    expected = answers(start(version, "none", enforce_eager=True), lengths=(3, 60, 50))

    chunked = start(version, "prefetch-ring", max_num_batched_tokens=24)
    assert [t for t, _ in answers(chunked, lengths=(3, 60, 50))] == [t for t, _ in expected]


def test_memory_of_graphs_is_a_kind_of_its_own_and_all_of_it_is_given_back(start):
    llm = start("v1", "uva-copy", max_num_seqs=4)
    device = worker_of(llm).device
    loaded = device.memory_stats()["device"]["by_kind"]
    answers(llm)

    kinds = device.memory_stats()["device"]["by_kind"]
    assert loaded == kinds
    assert kinds["graph_weights"] == LAYER_BYTES
    assert kinds["graph_inputs"] == 8 * 4 * (1 + 1 + 128 // 16)
    llm.shutdown()
    assert [0, 0, 0] == [device.memory_stats()[s]["current"] for s in ("device", "host", "pinned")]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["none", "uva-copy", "prefetch"])
def test_graphs_are_recorded_anew_where_addresses_moved(start, version, mode):
    def move_norm(llm):
        norm = worker_of(llm).model_runner.model.model.norm.weight
        norm.data = worker_of(llm).device.to(norm.data * torch.linspace(-1, 1, 32), "device")

    eager, graph = start(version, mode, enforce_eager=True), None
    before = answers(eager)
    move_norm(eager)
    expected = answers(eager)
    graph = start(version, mode)
    assert answers(graph) == before != expected
    move_norm(graph)

    assert answers(graph) == expected


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["none", "uva-copy", "prefetch-ring"])
def test_patches_and_sleep_leave_addresses_and_graphs_as_they_are(start, version, mode):
    name = "model.layers.2.mlp.down_proj.weight"
    patch = {name: (torch.arange(64), torch.linspace(-3, 3, 64))}

    def live(llm):
        before = answers(llm)
        recorded = dict(graphs_of(llm).recorded) if graphs_of(llm) else None
        worker_of(llm).apply_sparse_weight_patches(patch)
        patched = answers(llm)
        worker_of(llm).sleep(1)
        worker_of(llm).wake_up()
        assert answers(llm) == patched != before
        assert recorded is None or recorded == graphs_of(llm).recorded
        return before, patched

    assert live(start(version, mode)) == live(start(version, mode, enforce_eager=True))


def test_an_error_while_recording_leaves_nothing_behind(start, monkeypatch):
    llm = start("v1", "prefetch-ring")
    expected, graphs = answers(llm), graphs_of(llm)
    runner = worker_of(llm).model_runner
    last = runner.model.model.layers[2]
    graphs.clear()
    with monkeypatch.context() as patched:
        patched.setattr(last, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            graphs._record(2, graphs.inputs.first(2))

    assert {} == graphs.recorded
    assert answers(llm) == expected


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_wait_missing_inside_a_graph_is_a_race(start, monkeypatch, version):
    monkeypatch.setattr(ModuleOffloader, "_wait_for_copy", lambda _: None)
    llm = start(version, "prefetch")
    llm.ordering.races.clear()
    steps = graphs_of(llm)
    answers(llm)

    assert steps.recorded
    assert any("model.layers" in "".join(key[1:3]) for key in llm.ordering.races)


def test_a_replay_ahead_of_the_copies_before_it_is_a_race(start, monkeypatch):
    llm = start("v1", "prefetch")
    answers(llm)
    assert {} == llm.ordering.races
    monkeypatch.setattr(PrefetchOffloader, "sync_prev_onload", lambda _: None)
    answers(llm)

    assert llm.ordering.races


def test_a_copy_that_does_not_fork_from_the_graph_is_refused(start, monkeypatch):
    monkeypatch.setattr(ModuleOffloader, "_wait_for_reader", lambda _: None)
    with pytest.raises(CaptureIsolationError, match="recorded outside"):
        answers(start("v1", "prefetch"))
