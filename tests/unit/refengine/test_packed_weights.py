import json
from pathlib import Path

import pytest
import torch

from harness.core import OffloadConfig, Setting
from harness.plan import expect, parameter_shapes
from harness.plan.shapes import loaded_shapes
from harness.refengine import LLM, ConfigError, SamplingParams, UnsupportedSettingError
from harness.refengine.layers import PackedWeight, project
from harness.refengine.models.weight import PackedLinear
from harness.settings import load_model
from harness.settings.models import ensure_changed

MODEL = "seeded-llama-int8"
PROMPTS = [[5, 9, 17, 3], [7] * 11]
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
OFFLOADS = {
    "none": {},
    "uva": {"cpu_offload_gb": 1},
    "uva-copy": {"cpu_offload_gb": 1},
    "uva-part": {"cpu_offload_gb": 0.0005},
    "prefetch": {"offload_group_size": 1, "offload_prefetch_step": 3},
}


@pytest.fixture
def make(make_llm, engine_env):
    """`make(runner, mode)` -> an engine on the packed model."""

    def make_engine(runner, mode, model=None, **args):
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", {"v1": "0", "v2": "1"}[runner])
        engine_env.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", str(int(mode == "uva-copy")))
        args = {"load_format": "auto", "max_model_len": 64, **OFFLOADS[mode], **args}
        return make_llm(model or load_model(MODEL).path, **args)

    return make_engine


def runner_of(llm):
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def answers(llm):
    return [o.token_ids for o in llm.generate(prompt_token_ids=PROMPTS, sampling_params=PARAMS)]


@pytest.fixture
def changed_config(tmp_path):
    """A copy of the packed model whose quantization_config is changed."""

    def make_folder(change):
        source = Path(load_model(MODEL).path)
        config = json.loads((source / "config.json").read_text())
        change(config["quantization_config"])
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
        return str(tmp_path)

    return make_folder


def test_loading_leaves_transposed_codes_in_new_parameters_and_no_shapes(make):
    llm = make("v1", "none")
    layer = runner_of(llm).model.model.layers[0]

    weight = layer.mlp.gate_up_proj
    assert ["weight_packed", "weight_scale"] == [name for name, _ in weight.named_parameters()]
    assert (128, 192) == tuple(weight.weight_packed.shape)
    assert (768,) == tuple(weight.weight_scale.shape)
    assert not [n for n, _ in layer.named_parameters() if n.endswith("weight_shape")]


def test_a_packed_product_is_that_of_the_unpacked_weight():
    codes = torch.arange(8 * 4, dtype=torch.uint8).view(8, 4) * 7
    packed = PackedWeight(codes.view(torch.int32), torch.tensor([0.5, 1.0, 2.0, 0.25]))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))

    whole = (codes.float() - 128) * packed.weight_scale

    assert torch.allclose(x @ whole, project(x, packed))


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("mode", [mode for mode in OFFLOADS if mode != "none"])
def test_what_was_replaced_after_loading_is_offloaded_again(make, runner, mode):
    fields = {**OFFLOADS[mode], "uva": mode != "uva-copy"}
    setting = Setting(runner=runner, offload=OffloadConfig(**fields))
    expected = expect(setting, load_model(MODEL))
    llm = make(runner, mode)
    offloader = runner_of(llm).offloader
    names = {id(p): n for n, p in runner_of(llm).model.named_parameters()}

    masters = offloader.masters()

    assert set(expected.offloaded_params) == {names[id(param)] for param in masters}
    assert expected.offloaded_bytes == sum(copy.nbytes for copy in masters.values())
    counted = getattr(offloader, "cpu_offload_bytes", 0) or offloader.total_offloaded_bytes
    assert expected.offloaded_bytes == counted
    space = runner_of(llm).device.space_of
    assert {"pinned"} == {space(copy) for copy in masters.values()}


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("mode", OFFLOADS)
def test_tokens_are_those_without_offload_before_and_after_a_reload(make, runner, mode):
    model, plain = load_model(MODEL), make("v1", "none")
    other = str(ensure_changed(model))
    wanted, changed = answers(plain), answers(make("v1", "none", other))
    llm = make(runner, mode)

    assert wanted == answers(llm)
    llm.reload_weights(other)
    assert wanted != changed
    assert [changed] * 3 == [answers(llm) for _ in range(3)]  # more than a turn of the ring


def test_the_arithmetic_names_what_the_engine_holds_and_counts_the_budget_as_loaded(make):
    model = load_model(MODEL)
    live = [(n, tuple(p.shape)) for n, p in runner_of(make("v1", "none")).model.named_parameters()]

    assert live == [(p.name, p.shape) for p in parameter_shapes(model)]
    transient = [p for p in loaded_shapes(model) if p.is_transient]
    assert 4 * model.num_layers == len(transient)
    assert 8 * (6 + 2 + 4 + 2) * model.num_layers == sum(p.num_bytes for p in transient)


def test_shapes_that_contradict_the_codes_are_refused():
    weight = PackedLinear.__new__(PackedLinear)
    weight.out, weight.inputs, weight.full_name = 8, 4, "some.proj"
    loaded = {"weight_shape": torch.tensor([4, 4, 3, 4])}

    with pytest.raises(ConfigError, match=r"some\.proj\.weight_shape says \[4, 3\] x \[4, 4\]"):
        weight.transform(loaded)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(quant_method="gptq"), "quant_method='gptq' is not implemented"),
        (lambda c: c["config_groups"]["group_0"]["weights"].update(num_bits=4), "num_bits=4"),
        (lambda c: c["config_groups"]["group_0"]["weights"].pop("strategy"), "strategy=None"),
        (lambda c: c.update(ignore=[]), r"ignore=\[\]"),
        (lambda c: c["config_groups"].update(group_1={}), "config_groups=2"),
    ],
)
def test_another_quantization_is_refused_by_its_first_difference(changed_config, change, said):
    with pytest.raises(UnsupportedSettingError, match=said):
        LLM(changed_config(change))


def test_a_model_with_a_tower_is_never_packed(make_checkpoint):
    quantized = {"quantization_config": {"quant_method": "compressed-tensors"}}
    folder = make_checkpoint(architectures=["PromptTowerLlamaForCausalLM"], **quantized)

    with pytest.raises(UnsupportedSettingError, match=r"quantization_config=.* is not implemented"):
        LLM(folder, load_format="dummy")


def test_packed_weights_are_not_made_at_random(make):
    with pytest.raises(UnsupportedSettingError, match="load_format='dummy'"):
        make("v1", "none", load_format="dummy")
