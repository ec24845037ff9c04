"""What compute reads: named, hashed at the moment of use, held against the checkpoint's bytes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from harness.core import OffloadConfig
from harness.engines import view_of
from harness.observe.checkpoint import expected_digests, source_names
from harness.observe.instruments import attach, read_integrity
from harness.observe.source import WeightSource
from harness.observe.weights import EVERY, NOWHERE, WeightRecorder, digest_of
from harness.refengine.device import SimulatedDevice
from tests.live import COPYING, PREFETCH, UVA, worker_of


class Bench:
    """A device with a recorder on it, and one weight that compute can read."""

    def __init__(self, mode="sampled"):
        self.device, self.recorder = SimulatedDevice(), WeightRecorder(mode)
        self.device.observers.append(self.recorder)
        self.weight = self.device.empty((64, 64), torch.float32)
        self.weight.normal_(generator=torch.Generator().manual_seed(0))
        self.weight.param_name = "w"

    def read(self, times=1):
        for _ in range(times):
            self.device.launch(lambda: None, reads=(self.weight,)).result()

    @property
    def seen(self):
        return self.recorder.reads["w"]


def test_full_mode_hashes_every_read():
    bench = Bench("full")
    bench.read(5)

    assert bench.recorder.num_hashed == bench.seen.num_reads == 5
    assert bench.seen.digests == {digest_of(bench.weight): 5}


def test_sampled_mode_hashes_the_first_read_and_every_nth():
    bench = Bench()
    bench.read(2 * EVERY)

    assert bench.seen.num_reads == 2 * EVERY
    assert bench.recorder.num_hashed == 2


def test_other_weights_are_hashed_at_their_first_read_in_sampled_mode():
    bench = Bench()
    bench.read(5)
    good = digest_of(bench.weight)
    bench.weight.mul_(2.0)
    bench.read(3)
    bench.weight.mul_(0.5)
    bench.read(3)

    assert bench.seen.digests == {good: 2, digest_of(bench.weight * 2): 1}


def test_one_changed_element_is_seen_within_n_reads():
    bench = Bench()
    bench.read(2)
    bench.weight[3, 5] += 1.0
    bench.read(EVERY)

    assert len(bench.seen.digests) == 2


def test_bytes_are_hashed_when_work_runs_not_when_it_is_queued():
    bench = Bench("full")
    bench.device.launch(bench.weight.zero_, writes=(bench.weight,))
    bench.device.launch(lambda: None, reads=(bench.weight,))
    bench.weight.fill_(7.0)
    bench.device.synchronize()

    assert list(bench.seen.digests) == [digest_of(torch.zeros(64, 64))]


def test_tensors_without_a_name_and_copies_are_no_reads_by_compute():
    bench = Bench("full")
    bench.device.launch(lambda: None, reads=(bench.weight.data,))
    bench.device.copy_async(torch.empty(64, 64), bench.weight)
    bench.device.synchronize()

    assert bench.recorder.reads == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5), (8, 8), (1,), (0,)])
def test_a_digest_depends_on_the_elements_alone(dtype, shape):
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    transposed = tensor.T.contiguous().T if tensor.dim() == 2 else tensor

    assert digest_of(tensor) == digest_of(transposed) == digest_of(tensor.clone())
    if tensor.numel():
        assert digest_of(tensor) != digest_of(tensor + 1)


def test_the_checkpoint_is_fused_and_converted_without_the_engine(tmp_path):
    parts = {n: torch.randn(2, 4) for n in ("q_proj", "k_proj", "v_proj", "o_proj")}
    save_file(
        {f"l.0.{n}.weight": tensor for n, tensor in parts.items()}, tmp_path / "m.safetensors"
    )

    found = expected_digests(
        WeightSource(folder=str(tmp_path)),
        ["l.0.qkv_proj.weight", "l.0.o_proj.weight", "l.0.gate_up_proj.weight", "rotary"],
        torch.bfloat16,
    )

    fused = torch.cat([parts["q_proj"], parts["k_proj"], parts["v_proj"]]).bfloat16()
    assert found == {
        "l.0.qkv_proj.weight": digest_of(fused),
        "l.0.o_proj.weight": digest_of(parts["o_proj"].bfloat16()),
    }
    assert source_names("a.gate_up_proj.weight") == ("a.gate_proj.weight", "a.up_proj.weight")


def test_packed_codes_are_expected_transposed_and_their_scales_flat(tmp_path):
    codes = torch.arange(4 * 8, dtype=torch.uint8).view(4, 8)
    scales = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    whole = {"weight_packed": codes.view(torch.int32), "weight_scale": scales}
    save_file({f"l.0.o_proj.{n}": t for n, t in whole.items()}, tmp_path / "m.safetensors")
    held = {"weight_packed": codes.T.contiguous(), "weight_scale": scales.bfloat16().flatten()}
    shapes = {"l.0.o_proj.weight_packed": (8, 1), "l.0.o_proj.weight_scale": (4,)}

    source = WeightSource(folder=str(tmp_path))
    found = expected_digests(source, shapes, torch.bfloat16, shapes=shapes)

    assert found == {
        f"l.0.o_proj.{name}": digest_of(t.view(torch.int32) if t.dtype is torch.uint8 else t)
        for name, t in held.items()
    }


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize(
    "offload",
    [OffloadConfig(), UVA, COPYING, PREFETCH, replace(PREFETCH, pin_memory=False)],
    ids=["none", "uva", "copying", "prefetch", "unpinned"],
)
def test_every_parameter_is_the_checkpoints_however_it_is_offloaded(
    live_engine, instrumented, runner, offload
):
    engine = live_engine(runner=runner, offload=offload)
    engine.generate(0)
    view = view_of(worker_of(engine))

    (recorder,) = [o for o in view.observers if isinstance(o, WeightRecorder)]
    trace = read_integrity(view, recorder)

    names = [name for name, _ in view.model.named_parameters()]
    assert {r.name for r in trace.reads} == {*names, "rotary"}
    assert [r.name for r in trace.reads if set(r.digests) != {r.expected}] == []
    assert trace.not_observed == ("rotary is in no checkpoint: held against its own first read",)
    assert trace.num_reads >= trace.num_hashed >= 2 * len(names)


def test_wrong_bytes_are_kept_with_the_slot_they_were_read_from(live_engine, instrumented):
    engine = live_engine(runner="v2", offload=PREFETCH)
    view = view_of(worker_of(engine))
    first, second = view.offloader.module_offloaders[:2]
    first.host_copies.update(second.host_copies)
    engine.generate(0)

    (recorder,) = [o for o in view.observers if isinstance(o, WeightRecorder)]
    reads = {r.name: r for r in read_integrity(view, recorder).reads}

    wrong = reads["model.layers.2.mlp.down_proj.weight"]
    other = reads["model.layers.3.mlp.down_proj.weight"]
    assert wrong.slots == {other.expected: 0}
    assert wrong.digests[other.expected] > 0
    assert set(other.digests) == {other.expected}


@pytest.fixture
def instrumented(monkeypatch):
    """Recorders on every device that an engine of this test makes."""
    from harness.engines.reference import ReferenceModules

    owner = ReferenceModules().module("engine_core")
    original = owner.get_device

    def make(*args, **kwargs):
        device = original(*args, **kwargs)
        attach(device, ("integrity-full",))
        return device

    monkeypatch.setattr(owner, "get_device", make)


def test_names_of_a_convolution_and_its_mlp_lead_to_the_checkpoints():
    layer = "model.layers.0."
    assert source_names(f"{layer}short_conv.conv.weight") == (f"{layer}conv.conv.weight",)
    assert source_names(f"{layer}conv.conv.weight") == (f"{layer}conv.conv.weight",)
    assert source_names(f"{layer}feed_forward.w13.weight") == (
        f"{layer}feed_forward.w1.weight", f"{layer}feed_forward.w3.weight",
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_a_read_of_a_tensor_without_bytes_is_a_wrong_content_each_time(mode):
    bench = Bench(mode)
    bench.read()
    good, bench.weight = digest_of(bench.weight), torch.empty(64, 64, device="meta")
    bench.weight.param_name = "w"
    bench.recorder.on_run(SimpleNamespace(is_copy=False, reads=(bench.weight,)))
    bench.recorder.on_run(SimpleNamespace(is_copy=False, reads=(bench.weight,)))

    assert bench.seen.digests == {good: 1, NOWHERE: 2}
