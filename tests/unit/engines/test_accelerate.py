"""accelerate's forms run in this process: tokens, placement, bytes, memory, and what is refused."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from harness.core import HarnessError, OffloadConfig, SamplingParams, Setting  # noqa: E402
from harness.engines import EngineOutOfMemory, EngineRefused, view_of  # noqa: E402
from harness.engines.accelerate import AccelerateEngine, memory_errors  # noqa: E402
from harness.engines.accelerate_hooks import held_tensors  # noqa: E402
from harness.engines.accelerate_load import ARCHITECTURES, BACKENDS  # noqa: E402
from harness.engines.capabilities import ACCELERATE  # noqa: E402
from harness.faults import plant_in_worker  # noqa: E402
from harness.observe import install  # noqa: E402
from harness.plan import expect  # noqa: E402
from harness.settings import load_model, load_workload  # noqa: E402

LAYERS_ON_DISK = {"": "cpu", "model.layers.2": "disk", "model.layers.5": "disk"}
ENDS_ON_DISK = {
    "model.embed_tokens": "disk",
    "model.layers": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}
FORMS = {
    "cpu": (OffloadConfig(offload_backend="cpu_offload"), {}),
    "disk": (OffloadConfig(offload_backend="disk_offload"), {}),
    "map": (OffloadConfig(offload_backend="device_map", device_map=LAYERS_ON_DISK), {}),
    "ends": (OffloadConfig(offload_backend="device_map", device_map=ENDS_ON_DISK), {}),
    "loaded": (
        OffloadConfig(offload_backend="device_map", device_map=ENDS_ON_DISK),
        {"loader": "from_pretrained"},
    ),
    "blocks": (
        OffloadConfig(offload_backend="cpu_offload"),
        {"preload_module_classes": ["LlamaDecoderLayer"]},
    ),
}
MODELS = ["tiny-llama", "seeded-llama-tied"]


@pytest.fixture
def run():
    """`run(form, model=..., **fields of Setting)` -> a started engine in this process."""
    started = []

    def start(form=None, model="tiny-llama", *, instruments=("integrity",), **fields):
        offload, engine_args = FORMS[form] if form else (OffloadConfig(), {})
        setting = Setting(
            engine="accelerate",
            instruments=instruments,
            **{"offload": offload, "engine_args": engine_args, **fields},
        )
        engine = AccelerateEngine()
        undo = install([n for n in instruments if n.startswith("integrity")], engine.modules)
        started.append((engine, undo))
        engine.start(setting, load_workload("short", load_model(model)), num_threads=1)
        return engine

    yield start
    for engine, undo in started:
        engine.shutdown()
        undo()


def tokens(engine):
    return [output.token_ids for output in engine.generate(0)]


def checkpoint(model):
    (file,) = Path(load_model(model).path).glob("*.safetensors")
    return load_file(file)


def wrong_reads(probe):
    return [r.name for r in probe.integrity.reads if set(r.digests) != {r.expected}]


@pytest.mark.parametrize("model", ["tiny-llama", "seeded-mistral", "seeded-qwen3", "seeded-lfm2"])
def test_the_baseline_answers_what_transformers_own_generate_answers(run, model):
    engine = run(model=model)
    workload = engine.workload
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        workload.model.path, dtype=torch.float32
    )
    wanted = []
    for prompt in workload.prompt_token_ids:
        ids = torch.tensor([prompt])
        whole = loaded.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
            max_new_tokens=8, min_new_tokens=8, eos_token_id=None,
        )  # fmt: skip
        wanted.append(tuple(whole[0, len(prompt) :].tolist()))

    assert wanted == tokens(engine)


@pytest.mark.parametrize("model", MODELS)
def test_the_baseline_answers_what_the_embedded_engine_answers(run, live_engine, model):
    engine = run(model=model)
    if model == "tiny-llama":
        assert [o.token_ids for o in live_engine(runner="v1").generate(0)] == tokens(engine)
    probe = engine.probe()
    assert "NoopOffloader" == probe.offloader_class
    assert {"device"} == {p.space for p in probe.params}


def test_log_probabilities_are_those_of_one_plain_forward(run):
    engine = run()
    output = engine.generate(0)[0]
    loaded = transformers.LlamaForCausalLM.from_pretrained(
        engine.workload.model.path, dtype=torch.float32
    )
    ids = torch.tensor([[*output.prompt_token_ids, *output.token_ids]])
    with torch.no_grad():
        rows = torch.log_softmax(loaded(ids).logits[0], -1)[len(output.prompt_token_ids) - 1 : -1]

    assert len(output.token_ids) == len(output.logprobs.chosen) == 8
    for row, token, chosen, top_ids, top in zip(
        rows, output.token_ids, output.logprobs.chosen, output.logprobs.top_token_ids,
        output.logprobs.top, strict=True,
    ):  # fmt: skip
        assert token == int(row.argmax()) == top_ids[0]
        assert chosen == pytest.approx(float(row[token]), abs=1e-4)
        assert top == pytest.approx([float(row[i]) for i in top_ids], abs=1e-4)
        assert 5 == len(top)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_answers_alike_and_stands_where_arithmetic_says(run, form, model):
    plain = run(model=model)
    engine = run(form, model)
    setting = Setting(engine="accelerate", offload=FORMS[form][0], engine_args=FORMS[form][1])
    expected = expect(setting, load_model(model))

    assert tokens(plain) == tokens(engine)

    left, probe = plain.probe(), engine.probe()
    away = {p.name: p for p in probe.params if p.is_offloaded}
    assert not probe.drift
    assert set(expected.offloaded_params) == set(away)
    assert (
        set(expected.all_params) == {p.name for p in probe.params} == {p.name for p in left.params}
    )
    assert expected.offloaded_bytes == probe.offloaded_bytes == probe.reported_offloaded_bytes
    assert {"host" if form in ("cpu", "blocks") else "disk"} == {p.space for p in away.values()}
    assert "AlignDevicesHook" == probe.offloader_class
    assert not any(p.is_pinned or p.is_uva for p in away.values())
    saved = left.memory.device_bytes - probe.memory.device_bytes
    assert expected.offloaded_bytes == saved
    in_host = expected.offloaded_bytes if form in ("cpu", "blocks") else 0
    assert in_host == probe.memory.host_bytes


@pytest.mark.parametrize("form", [None, *FORMS])
def test_every_weight_is_hashed_at_compute_and_is_the_checkpoints(run, form):
    engine = run(form, instruments=("integrity-full",))
    engine.generate(0)

    trace = engine.probe().integrity

    assert 75 == len(trace.reads)
    assert [] == wrong_reads(engine.probe())
    assert () == trace.not_observed
    assert {2 * 8} == {sum(r.digests.values()) for r in trace.reads}  # prompts x tokens


def test_a_tied_matrix_is_read_twice_a_pass_under_one_name(run):
    engine = run("disk", "seeded-llama-tied", instruments=("integrity-full",))
    engine.generate(0)

    (embedding,) = [
        r for r in engine.probe().integrity.reads if r.name == "model.embed_tokens.weight"
    ]

    assert 2 * 2 * 8 == sum(embedding.digests.values())
    assert not embedding.is_first_read


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", ["cpu", "disk", "map", "loaded"])
def test_what_is_kept_is_the_checkpoint_byte_for_byte(run, form, model):
    engine = run(form, model)
    wanted = checkpoint(model)

    held = held_tensors(engine.worker.model)

    assert held
    for name, each in held.items():
        source = wanted[engine.worker.ties.get(name, name)]
        found = each.store[each.key]
        assert torch.equal(found.view(torch.uint8), source.to(found.dtype).view(torch.uint8)), name


def test_bfloat16_is_kept_on_disk_in_two_bytes(run):
    engine = run("disk", engine_args={"dtype": "bfloat16"})

    engine.generate(0)

    probe = engine.probe()
    assert {"bfloat16"} == {p.dtype for p in probe.params}
    assert 6_955_520 // 2 == probe.offloaded_bytes
    assert [] == wrong_reads(probe)


def test_a_map_to_one_place_offloads_nothing(run):
    places = OffloadConfig(offload_backend="device_map", device_map={"": "cpu"})
    engine = run(offload=places)

    probe = engine.probe()

    assert "NoopOffloader" == probe.offloader_class
    assert 0 == probe.offloaded_bytes == probe.reported_offloaded_bytes


@pytest.mark.parametrize("form", ["disk", "map"])
def test_a_zeroed_file_is_named_by_its_weight(run, form):
    engine = run(form)
    plain = tokens(engine)
    plant_in_worker(view_of(engine.worker), "disk-copy-damaged")

    assert plain != tokens(engine)

    (name,) = wrong_reads(engine.probe())
    assert name.endswith("mlp.up_proj.weight")


@pytest.mark.parametrize("form", ["cpu", "disk", "map"])
def test_the_control_damages_what_compute_reads(run, form):
    engine = run(form)
    plain = tokens(engine)
    plant_in_worker(view_of(engine.worker), "host-copy-damaged")

    assert plain != tokens(engine)

    assert 1 == len(wrong_reads(engine.probe()))


def test_damage_never_reaches_the_checkpoint(run):
    file = Path(load_model("tiny-llama").path) / "model.safetensors"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    places = {**dict.fromkeys(ENDS_ON_DISK, "cpu"), "model.layers": "disk"}
    offload = OffloadConfig(offload_backend="device_map", device_map=places)
    engine = run(offload=offload, engine_args={"loader": "from_pretrained"})
    plain = tokens(engine)
    assert [] == list(engine.folder.iterdir())

    for name in ("host-copy-damaged", "disk-copy-damaged"):
        plant_in_worker(view_of(engine.worker), name)

    assert plain != tokens(engine)
    assert 2 == len(wrong_reads(engine.probe()))
    assert 2 == len(list(engine.folder.iterdir()))
    assert before == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_file_cut_short_or_gone_is_drift_by_name(run):
    engine = run("disk")
    file = engine.folder / "model.layers.3.mlp.up_proj.weight.dat"
    file.write_bytes(file.read_bytes()[:-4])
    assert any("up_proj.weight.dat with" in name for name in engine.probe().drift)

    file.unlink()
    assert any("up_proj.weight.dat" in name for name in engine.probe().drift)


def test_a_hook_without_its_map_is_drift_by_name(run):
    engine = run("cpu")
    del view_of(engine.worker).holder("lm_head.weight").hook.weights_map

    assert "AlignDevicesHook.weights_map" in engine.probe().drift


def test_what_accelerate_says_is_kept(run):
    places = OffloadConfig(
        offload_backend="device_map",
        device_map={"": "cpu", "model.layers.2": "disk", "model.layer.3": "disk"},
    )

    said = " ".join(run(offload=places).probe().warnings)

    assert "were offloaded to the" in said
    assert "model.layer.3" in said


def test_the_folder_is_gone_after_shutdown_and_after_a_failed_start(run):
    engine = run("disk")
    folder = engine.folder
    assert (folder / "index.json").is_file()

    engine.shutdown()
    engine.shutdown()
    assert not folder.exists()

    half = AccelerateEngine()
    places = OffloadConfig(offload_backend="device_map", device_map={"model.norm": "disk"})
    workload = load_workload("short", load_model("tiny-llama"))
    with pytest.raises(EngineRefused, match="device_map"):
        half.start(Setting(engine="accelerate", offload=places), workload, num_threads=1)
    folder = half.folder
    half.shutdown()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"engine_args": {"devise": "cpu"}}, "unknown engine argument 'devise'"),
        ({"engine_args": {"device": "tpu"}}, "device='tpu' must be one of cpu, cuda"),
        ({"engine_args": {"offload_buffers": 1}}, "must be of type bool"),
        ({"engine_args": {"loader": "torch"}}, "loader='torch'"),
        ({"offload": OffloadConfig(cpu_offload_gb=1)}, "offload backend 'uva'"),
        ({"runner": "v2"}, "runner='v2'"),
        ({"multiprocessing": True}, "no engine core"),
        ({"enforce_eager": False}, "eagerly"),
        ({"server": True}, "no server"),
        ({"instruments": ("ordering",)}, "synchronous"),
        ({"instruments": ("poison",)}, "synchronous"),
        ({"instruments": ("delay-copy",)}, "synchronous"),
        (
            {
                "offload": OffloadConfig(offload_backend="disk_offload"),
                "engine_args": {"loader": "from_pretrained"},
            },
            "by a device_map only",
        ),
        (
            {"offload": OffloadConfig(offload_backend="device_map", device_map={"": "cuda:0"})},
            "place 'cuda:0'",
        ),
    ],
)
def test_what_it_does_not_have_is_refused_by_name(run, fields, reason):
    with pytest.raises(EngineRefused, match=reason):
        run(**fields)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(run):
    with pytest.raises(EngineRefused, match="no CUDA device"):
        run(engine_args={"device": "cuda"})


def test_sampling_is_refused():
    workload = load_workload("short", load_model("tiny-llama"))
    warm = replace(workload, sampling_params=SamplingParams(temperature=0.5))

    with pytest.raises(EngineRefused, match=r"temperature=0\.5"):
        AccelerateEngine().start(Setting(engine="accelerate"), warm, num_threads=1)


def test_an_interpreter_without_accelerate_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    workload = load_workload("short", load_model("tiny-llama"))

    with pytest.raises(HarnessError, match=r"cannot import accelerate .* install"):
        AccelerateEngine().start(Setting(engine="accelerate"), workload, num_threads=1)


def test_cudas_out_of_memory_is_told_apart():
    with pytest.raises(EngineOutOfMemory, match="tried to allocate"), memory_errors():
        raise torch.OutOfMemoryError("CUDA out of memory: tried to allocate 1 GiB")


def test_an_answer_may_end_early_when_asked_to():
    loaded = load_model("tiny-llama")
    workload = load_workload("short", loaded)
    engine = AccelerateEngine()
    try:
        engine.start(Setting(engine="accelerate"), workload, num_threads=1)
        third = engine.generate(0)[0].token_ids[2]
        params = replace(workload.sampling_params, ignore_eos=False)
        engine.workload = replace(workload, sampling_params=params)
        engine.worker.model.config.eos_token_id = [third]
        output = engine.generate(0)[0]
    finally:
        engine.shutdown()

    assert "stop" == output.finish_reason
    assert third == output.token_ids[-1]
    assert len(output.token_ids) <= 3


def test_the_statement_is_what_the_engine_does():
    assert {*ACCELERATE["backends"], "none"} == set(BACKENDS)
    assert set(ACCELERATE["architectures"]) == set(ARCHITECTURES)
    assert json.dumps(ACCELERATE)


ON_CUDA = {
    "cpu": OffloadConfig(offload_backend="cpu_offload"),
    "disk": OffloadConfig(offload_backend="disk_offload"),
    "map": OffloadConfig(
        offload_backend="device_map",
        device_map={"": "cuda:0", "model.layers.2": "disk", "model.layers.5": "cpu"},
    ),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("form", ON_CUDA)
def test_on_a_gpu_every_form_answers_alike_and_frees_what_it_must(run, form):
    args = {"device": "cuda"}
    plain = run(engine_args=args)
    wanted, left = tokens(plain), plain.probe()
    plain.shutdown()
    torch.cuda.empty_cache()
    engine = run(engine_args=args, offload=ON_CUDA[form])
    setting = Setting(engine="accelerate", offload=ON_CUDA[form], engine_args=args)
    expected = expect(setting, load_model("tiny-llama"))

    assert wanted == tokens(engine)

    probe = engine.probe()
    away = {p.name: p.space for p in probe.params if p.is_offloaded}
    assert not probe.drift
    assert "cuda" == probe.effective_config["device"]
    assert set(expected.offloaded_params) == set(away)
    saved = left.memory.device_bytes - probe.memory.device_bytes
    assert abs(expected.offloaded_bytes - saved) < 512 * len(away)
    assert [] == wrong_reads(probe)


@pytest.mark.parametrize("form", [None, "cpu", "disk", "map"])
def test_a_weight_that_its_parent_reads_is_seen_at_each_token(run, form):
    engine = run(form, "seeded-lfm2", instruments=("integrity-full",))
    engine.generate(0)

    reads = {r.name: r for r in engine.probe().integrity.reads}

    names = {name for name, _ in engine.worker.model.named_parameters()}
    assert names - {"lm_head.weight"} == set(reads)
    convs = [r for name, r in reads.items() if name.endswith(".conv.conv.weight")]
    assert 5 == len(convs)
    assert {2 * 8} == {sum(r.digests.values()) for r in convs}
    assert [] == wrong_reads(engine.probe())
