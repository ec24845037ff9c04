import logging
from dataclasses import dataclass, make_dataclass
from enum import Enum
from types import SimpleNamespace

import pytest
import torch

from harness.core import Setting
from harness.engines.base import InternalMovedError, view_of
from harness.engines.vllm import device as device_module
from harness.engines.vllm import emulation, taps, view
from harness.engines.vllm.modules import PATHS, VllmModules
from harness.engines.vllm.view import VllmView
from harness.judge.arguments import check_arguments
from harness.observe import read_probe
from tests.stand_in_vllm import install_vllm
from tests.stand_in_vllm.worker import ModelConfig, ParallelConfig, make_config, make_worker

BYTES = 36
"""Of one layer's one parameter."""


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setattr(emulation, "_is_on", [])
    monkeypatch.setattr(emulation, "_host", {})
    monkeypatch.setattr(taps, "REFILLS", {})
    monkeypatch.setattr(taps, "_last", [])
    monkeypatch.setattr(device_module, "_devices", [])
    capturing = torch.cuda.is_current_stream_capturing
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    return install_vllm(monkeypatch)


@pytest.fixture
def prefetching(vllm):
    """A live worker with four layers in a ring of three slots, after one step."""
    emulation.install()
    taps.note_refills(VllmModules())
    worker = make_worker(vllm.runner_v2, vllm.offloader_prefetch.PrefetchOffloader(3))
    worker.model_runner.model(torch.ones(1, 3))
    return worker


@pytest.fixture
def viewing(vllm):
    """A live worker whose first two layers are views of host memory."""
    emulation.install()
    return make_worker(vllm.runner_v1, vllm.offloader_uva.UVAOffloader(2 * BYTES))


def plain_worker(vllm, **config):
    return make_worker(vllm.runner_v2, vllm.offloader_base.NoopOffloader(), **config)


def test_a_worker_of_vllm_has_vllms_view(vllm):
    assert isinstance(view_of(plain_worker(vllm)), VllmView)


def test_a_probe_of_prefetch_shows_what_is_where(prefetching):
    probe = read_probe(view_of(prefetching))

    assert () == probe.drift
    assert ("PrefetchOffloader", "v2") == (probe.offloader_class, probe.runner)
    assert "0.0.stand-in" == probe.engine_version
    assert [0, 1, 2, 3] == [p.layer_idx for p in probe.params if p.is_offloaded]
    assert {"host"} == {p.space for p in probe.params if p.is_offloaded}
    assert 4 * BYTES == probe.offloaded_bytes == probe.reported_offloaded_bytes
    assert {0: 0, 1: 1, 2: 2, 3: 0} == probe.buffer_pool.slots
    assert {0: 3, 1: 1, 2: 2, 3: 0} == probe.buffer_pool.refill_after
    assert 3 * BYTES == probe.buffer_pool.num_bytes
    assert {"buffer_pool": 3 * BYTES, "weights": 12} == probe.memory.by_kind
    assert (4 * BYTES, 3 * BYTES + 12) == (probe.memory.host_bytes, probe.memory.device_bytes)


def test_a_probe_of_views_shows_what_is_where(viewing):
    probe = read_probe(view_of(viewing))

    assert () == probe.drift
    assert ("UVAOffloader", "v1") == (probe.offloader_class, probe.runner)
    assert [(0, True), (1, True)] == [
        (p.layer_idx, p.is_uva) for p in probe.params if p.is_offloaded
    ]
    assert 2 * BYTES == probe.offloaded_bytes == probe.reported_offloaded_bytes
    assert probe.buffer_pool is None


def test_a_copy_on_forward_is_no_view(vllm):
    emulation.install()
    worker = make_worker(vllm.runner_v1, vllm.offloader_uva.UVAOffloader(2 * BYTES, uva=False))
    worker.model_runner.model.model.layers[0].mlp.weight._vllm_is_uva_offloaded = False
    looked = view_of(worker)
    (first, *_) = looked.model.parameters()

    assert looked.host_copy(first) is not None
    assert not looked.is_host_view(first)


def test_without_offload_everything_is_on_the_device(vllm):
    probe = read_probe(view_of(plain_worker(vllm)))

    assert ("NoopOffloader", 0, 0) == (
        probe.offloader_class, probe.offloaded_bytes, probe.reported_offloaded_bytes,
    )  # fmt: skip
    assert {"device"} == {p.space for p in probe.params}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.7.mlp.weight", 7),
        ("model.layers.12.", 12),
        ("model.embed_tokens.weight", None),
        ("model.layers.x.weight", None),
        ("lm_head.weight", None),
        ("visual.layers.3.weight", None),
        ("", None),
    ],
)
def test_the_layer_is_read_from_the_name(name, layer):
    assert layer == VllmView(None).layer_of(name)


@pytest.mark.parametrize(("role", "version"), [("runner.v1", "v1"), ("runner.v2", "v2")])
@pytest.mark.parametrize("is_derived", [False, True])
def test_the_runner_is_told_by_where_its_classes_are_from(role, version, is_derived):
    cls = type("GPUModelRunner", (), {"__module__": PATHS[role]})
    if is_derived:
        cls = type("CPUModelRunner", (cls,), {"__module__": "vllm.v1.worker.cpu.model_runner"})

    assert version == VllmView(SimpleNamespace(model_runner=cls())).runner_version


def test_v2_made_from_v1_is_v2():
    first = type("GPUModelRunner", (), {"__module__": PATHS["runner.v1"]})
    second = type("GPUModelRunner", (first,), {"__module__": PATHS["runner.v2"]})

    assert "v2" == VllmView(SimpleNamespace(model_runner=second())).runner_version


def test_a_runner_of_elsewhere_is_neither():
    assert VllmView(SimpleNamespace(model_runner=object())).runner_version is None


def test_the_configuration_is_flat_and_the_first_of_equal_names_wins(vllm):
    config = view_of(plain_worker(vllm)).effective_config

    assert ("/models/toy", "float32", True) == (
        config["model"], config["dtype"], config["enforce_eager"],
    )  # fmt: skip
    assert (0.0, ["a", "b"], "auto") == (
        config["cpu_offload_gb"], config["cpu_offload_params"], config["offload_backend"],
    )  # fmt: skip
    assert [4, 1, 2] == config["compilation_config"]["sizes"]
    assert (0, 16) == (config["seed"], config["block_size"])
    assert 3 == config["hidden_size"]
    assert not {"hooks", "layers"} & set(config["compilation_config"])


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"kv_cache_dtype": "fp8"}, True),
        ({"kv_cache_dtype": "bfloat16"}, False),
        ({"block_size": 16}, True),
        ({"block_size": 32}, False),
        ({"load_format": "safetensors"}, True),
        ({"load_format": "dummy"}, False),
        ({"model_loader_extra_config": {"threads": 2}}, True),
        ({"tensor_parallel_size": 2}, False),
        ({"scheduling_policy": "priority"}, True),
        ({"scheduling_policy": "fcfs"}, False),
        ({"cudagraph_capture_sizes": [2, 1]}, True),
        ({"compilation_config": {"mode": 3, "pass_config": {"eliminate_noops": True}}}, True),
        ({"compilation_config": {"mode": 0}}, False),
        ({"compilation_config": {"mode": "VLLM_COMPILE"}}, None),
        ({"compilation_config": {"cudagraph_mode": "full_and_piecewise"}}, True),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, False),
        ({"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}}, False),
        ({"compilation_config": {"no_such": 1}}, None),
        ({"attention_backend": "FLASH_ATTN"}, None),
    ],
)
def test_arguments_are_held_against_the_live_configuration(vllm, asked, word):
    """A release without the part that an argument lives in leaves it unchecked."""
    worker = plain_worker(vllm, model_config=ModelConfig(enforce_eager=False))
    probe = read_probe(view_of(worker))

    (check,) = check_arguments(Setting(engine="vllm", engine_args=asked), probe)

    assert () == probe.drift
    assert check.is_ok is word


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}}, None),
        ({"compilation_config": {"mode": 0}}, None),
        ({"cudagraph_capture_sizes": [4]}, None),
        ({"compilation_config": {"sizes": [7]}}, False),
    ],
)
def test_in_eager_mode_nothing_is_said_of_what_it_sets_aside(vllm, asked, word):
    probe = read_probe(view_of(plain_worker(vllm)))

    (check,) = check_arguments(Setting(engine="vllm", engine_args=asked), probe)

    assert check.is_ok is word


def test_a_part_that_only_some_releases_have_is_read_where_it_is(vllm):
    backend = Enum("Backend", ["FLASH_ATTN"])
    part = make_dataclass("AttentionConfig", [("backend", object)])(backend.FLASH_ATTN)

    config = read_probe(view_of(plain_worker(vllm, attention_config=part))).effective_config

    assert ("FLASH_ATTN", {"backend": "FLASH_ATTN"}) == (
        config["attention_backend"], config["attention_config"],
    )  # fmt: skip


@dataclass
class NoEager:
    model: str = "/models/toy"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda w: delattr(w, "model_runner"), "Worker.model_runner"),
        (lambda w: delattr(w, "device"), "Worker.device"),
        (lambda w: delattr(w.vllm_config, "offload_config"), "SimpleNamespace.offload_config"),
        (lambda w: setattr(w.vllm_config, "model_config", NoEager()), "NoEager.enforce_eager"),
        (
            lambda w: delattr(offloader(w), "module_offloaders"),
            "PrefetchOffloader.module_offloaders",
        ),
        (lambda w: delattr(offloader(w).buffer_pool, "_buffers"), "StaticBufferPool._buffers"),
        (
            lambda w: delattr(offloader(w), "total_offloaded_bytes"),
            "PrefetchOffloader.total_offloaded_bytes",
        ),
        (
            lambda w: delattr(offloader(w).module_offloaders[0], "_buffer_slot_idx"),
            "_ModuleOffloader._buffer_slot_idx",
        ),
    ],
)
def test_an_internal_that_moved_is_drift_by_its_name(prefetching, change, name):
    change(prefetching)

    probe = read_probe(VllmView(prefetching))

    assert name in probe.drift


def offloader(worker):
    return VllmView(worker).offloader


def test_a_name_that_is_gone_from_a_module_is_named_with_it(vllm):
    del vllm.offloader_base.get_offloader

    with pytest.raises(InternalMovedError, match=r"offloader\.base\.get_offloader"):
        _ = VllmView(plain_worker_without_offloader()).offloader


def plain_worker_without_offloader():
    return SimpleNamespace(vllm_config=make_config())


def test_a_module_that_is_gone_is_named(vllm):
    with pytest.raises(InternalMovedError, match=r"vllm\.model_executor\.gone"):
        VllmModules().module("model_executor.gone")


def test_graphs_hide_what_compute_reads(vllm):
    worker = plain_worker(vllm, model_config=ModelConfig(enforce_eager=False))

    looked = view_of(worker)

    assert not looked.sees_compute
    assert (view.GRAPHS_HIDE,) == tuple(looked.not_observed)


def test_an_emulation_says_that_it_cannot_show_a_race(prefetching, vllm, monkeypatch):
    assert [view.NO_STREAMS] == view_of(prefetching).not_observed
    monkeypatch.setattr(emulation, "_is_on", [])
    assert [] == view_of(prefetching).not_observed


@pytest.mark.parametrize(("rank", "size", "part"), [(0, 1, 0), (3, 4, 3), (5, 4, 1)])
def test_a_rank_has_its_part_of_each_tensor(vllm, rank, size, part):
    worker = plain_worker(vllm, parallel_config=ParallelConfig(tensor_parallel_size=size))
    worker.rank = rank

    assert (part, size) == view_of(worker).tensor_part


@pytest.mark.parametrize(("eager", "is_watched"), [(True, True), (False, False)])
def test_reads_are_watched_where_compute_can_be_seen(vllm, eager, is_watched):
    worker = plain_worker(vllm, model_config=ModelConfig(enforce_eager=eager))
    device = device_module.live_device("cpu")
    read = []
    device.observers.append(SimpleNamespace(on_launch=read.append, on_run=lambda _: None))
    looked = view_of(worker)

    looked.watch_reads()
    looked.model(torch.ones(1, 3))

    assert looked.observers is device.observers
    assert is_watched is bool(read)


def test_without_a_device_nobody_observes(vllm):
    looked = view_of(plain_worker(vllm))
    looked.watch_reads()

    assert () == looked.observers


def test_warnings_of_vllm_are_kept_once_in_one_line(monkeypatch):
    monkeypatch.setattr(view, "WARNINGS", [])
    logger, other = logging.Logger("vllm.x"), logging.Logger("elsewhere")
    plain = logging.getLogRecordFactory()
    view.note_warnings()
    try:
        for _ in range(2):
            logger.warning("pinning is\n  %s", "off")
        logger.info("not this")
        other.warning("nor this")
        for i in range(view.MAX_WARNINGS):
            logger.warning("number %d", i)
    finally:
        logging.setLogRecordFactory(plain)

    found = VllmView(None).warnings
    assert ("pinning is off", "number 0") == found[:2]
    assert view.MAX_WARNINGS == len(found)
