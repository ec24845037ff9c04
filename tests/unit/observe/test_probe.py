from dataclasses import replace

import pytest

from harness.core import ProbeSnapshot, decode, encode
from harness.engines import InternalMovedError, view_of
from harness.observe import read_probe
from harness.observe.drift import Drift
from tests.live import COPYING, PREFETCH, UNPINNED, UVA, worker_of

both_runners = pytest.mark.parametrize("runner", ["v1", "v2"])


@pytest.fixture
def look(live_engine):
    """`look(**fields)` -> (engine, view) after one generate step."""

    def start(**fields):
        engine = live_engine(**fields)
        engine.generate(0)
        return engine, view_of(worker_of(engine))

    return start


@both_runners
def test_without_offload_everything_is_on_the_device(look, runner):
    _, view = look(runner=runner)

    probe = read_probe(view)

    assert probe.offloader_class == "NoopOffloader"
    assert {p.space for p in probe.params} == {"device"}
    assert probe.offloaded_bytes == probe.reported_offloaded_bytes == 0
    assert probe.buffer_pool is None
    assert probe.drift == ()
    weights = sum(p.num_bytes for p in probe.params)
    assert probe.memory.by_kind["weights"] == weights


@both_runners
@pytest.mark.parametrize(
    ("offload", "name", "space", "is_uva"),
    [
        (UVA, "UVAOffloader", "pinned", True),
        (COPYING, "UVAOffloader", "pinned", False),
        (PREFETCH, "PrefetchOffloader", "pinned", False),
        (UNPINNED, "PrefetchOffloader", "host", False),
    ],
)
def test_offloaded_parameters_are_found_where_they_are(look, runner, offload, name, space, is_uva):
    engine, view = look(runner=runner, offload=offload)

    probe = read_probe(view)

    found = [p for p in probe.params if p.is_offloaded]
    assert probe.offloader_class == name
    assert {(p.space, p.is_pinned, p.is_uva) for p in found} == {(space, space == "pinned", is_uva)}
    assert probe.offloaded_bytes == probe.reported_offloaded_bytes > 0
    stats = worker_of(engine).memory_stats()
    assert stats[space]["by_kind"]["weights"] == probe.offloaded_bytes
    assert probe.drift == ()


def test_slots_and_refills_are_seen_on_the_live_pool(look):
    _, view = look(runner="v2", offload=PREFETCH)

    probe = read_probe(view)

    pool = probe.buffer_pool
    assert pool.slot_capacity == 3
    assert pool.slots == {2: 0, 3: 1, 6: 2, 7: 0}
    assert pool.refill_after == {2: 7, 3: 3, 6: 6, 7: 2}
    assert pool.num_bytes == probe.memory.by_kind["buffer_pool"]
    by_layer = {(p.layer_idx, p.slot_idx) for p in probe.params if p.is_offloaded}
    assert by_layer == set(pool.slots.items())
    assert all(p.slot_idx is None for p in probe.params if not p.is_offloaded)


def test_a_slot_is_told_by_address_not_by_what_the_offloader_says(look):
    _, view = look(runner="v2", offload=PREFETCH)
    modules = view.offloader.module_offloaders
    modules[0].slot_idx = 2
    for name in modules[1].host_copies:
        modules[1].module.get_parameter(name).data = modules[2].buffers[name]

    assert read_probe(view).buffer_pool.slots == {2: 0, 3: 2, 6: 2, 7: 0}


def test_pinning_is_asked_of_the_allocation_not_of_the_offloader(look):
    _, view = look(runner="v2", offload=UNPINNED)
    view.offloader.pin_memory = True

    assert not any(p.is_pinned for p in read_probe(view).params)


def test_a_host_copy_moved_to_the_device_is_no_longer_offloaded(look):
    _, view = look(runner="v1", offload=PREFETCH)
    module = view.offloader.module_offloaders[0]
    copies = {name: view.worker.device.to(c, "device") for name, c in module.host_copies.items()}
    module.host_copies = copies

    probe = read_probe(view)

    moved = [p for p in probe.params if p.layer_idx == 2]
    assert {p.space for p in moved} == {"device"}
    assert probe.offloaded_bytes < probe.reported_offloaded_bytes


def test_configuration_environment_and_warnings_are_the_engines_own(look):
    _, view = look(runner="v2", offload=replace(PREFETCH, cpu_offload_gb=1.0))

    probe = read_probe(view)

    assert probe.effective_config["enforce_eager"] is True
    assert probe.effective_config["offload_group_size"] == 4
    assert probe.effective_config["offload_params"] == []
    assert probe.env["VLLM_USE_V2_MODEL_RUNNER"] is True
    assert "cpu_offload_gb=1 is ignored" in probe.warnings[0]


@pytest.mark.parametrize(
    ("owner", "attribute", "name"),
    [
        ("offloader", "module_offloaders", "PrefetchOffloader.module_offloaders"),
        ("offloader", "buffer_pool", "PrefetchOffloader.buffer_pool"),
        ("offloader", "total_offloaded_bytes", "PrefetchOffloader.total_offloaded_bytes"),
        ("offloader", "refills", "PrefetchOffloader.refills"),
        ("runner", "model", "GPUModelRunner.model"),
    ],
)
def test_an_internal_that_is_gone_is_named_and_the_rest_is_still_read(look, owner, attribute, name):
    _, view = look(runner="v2", offload=PREFETCH)
    target = getattr(view, owner)
    kept = target.__dict__.pop(attribute)
    try:
        probe = read_probe(view)
    finally:
        target.__dict__[attribute] = kept

    assert name in probe.drift
    assert probe.offloader_class == "PrefetchOffloader"
    assert probe.memory is not None


def test_a_snapshot_survives_json_and_knows_what_was_used_after_loading(look):
    engine, _ = look(runner="v1", offload=UVA)

    probe = engine.probe()

    assert decode(ProbeSnapshot, encode(probe)) == probe
    memory = probe.memory
    assert 0 < memory.device_load_bytes <= memory.device_load_peak_bytes
    assert memory.device_load_peak_bytes < memory.device_peak_bytes
    assert memory.process.group_rss_bytes >= memory.process.rss_bytes > memory.device_bytes


def test_drift_names_each_missing_internal_once():
    drift = Drift()

    def gone():
        raise InternalMovedError("A.b")

    assert [drift.read(gone, 1), drift.read(gone, 2)] == [1, 2]
    assert drift.read(lambda: drift.nothing, None) is None
    assert drift.names == ["A.b", "Drift.nothing"]
