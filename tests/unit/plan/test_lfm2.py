"""A model whose layers are of two kinds: names, shapes and bytes worked out by hand."""

import pytest
import torch
import transformers

from harness.core import GIB, OffloadConfig, Setting, SettingError
from harness.plan import expect, parameter_shapes
from harness.plan.accelerate import expect_hooks, unfused_shapes
from harness.settings import load_model

CONV_BYTES = 4 * (128 * 3 + 3 * 128 * 128 + 128 * 128)
ATTENTION_BYTES = 4 * (256 * 128 + 128 * 128 + 2 * 32)
REST_BYTES = 4 * (704 * 128 + 128 * 352 + 2 * 128)
"""Of every layer: MLP and two norms."""
KINDS = ["conv", "conv", "full_attention", "conv"]


@pytest.fixture
def make_lfm2(make_model):
    def make(kinds=KINDS, **config):
        return make_model(
            architecture="Lfm2ForCausalLM", layer_types=kinds, num_hidden_layers=len(kinds),
            **{"conv_L_cache": 3, "tie_word_embeddings": True, **config},
        )  # fmt: skip

    return make


def offloaded(model, **fields):
    return expect(Setting(runner="v1", offload=OffloadConfig(**fields)), model)


def test_parameters_are_named_and_ordered_as_vllm_has_them(make_lfm2):
    shapes = [(p.name, p.shape) for p in parameter_shapes(make_lfm2(["conv", "full_attention"]))]

    tail = [("w13", (704, 128)), ("w2", (128, 352))]
    tail = [(f"feed_forward.{name}", shape) for name, shape in tail]
    tail += [("operator_norm", (128,)), ("ffn_norm", (128,))]
    conv = [("conv", (128, 1, 3)), ("in_proj", (384, 128)), ("out_proj", (128, 128))]
    attention = [("qkv_proj", (256, 128)), ("out_proj", (128, 128))]
    attention += [("q_layernorm", (32,)), ("k_layernorm", (32,))]
    layers = [
        [*((f"short_conv.{name}", shape) for name, shape in conv), *tail],
        [*((f"self_attn.{name}", shape) for name, shape in attention), *tail],
    ]
    assert shapes == [
        ("model.embed_tokens.weight", (1024, 128)),
        *((f"model.layers.{i}.{n}.weight", s) for i in (0, 1) for n, s in layers[i]),
        ("model.embedding_norm.weight", (128,)),
    ]


def test_each_layer_has_the_bytes_of_its_kind(make_lfm2):
    found = offloaded(make_lfm2(), cpu_offload_gb=1)

    assert 3 * CONV_BYTES + ATTENTION_BYTES + 4 * REST_BYTES == found.offloaded_bytes
    cut = offloaded(make_lfm2(), cpu_offload_gb=(CONV_BYTES + REST_BYTES + 1) / GIB)
    assert (0, 1) == cut.offloaded_layers
    assert "model.layers.1.short_conv.conv.weight" == cut.offloaded_params[-1]
    assert CONV_BYTES + REST_BYTES + 4 * 128 * 3 == cut.offloaded_bytes


@pytest.mark.parametrize(
    ("fields", "slot_bytes"),
    [
        ({"offload_group_size": 1}, CONV_BYTES + ATTENTION_BYTES + REST_BYTES),
        ({"offload_group_size": 2}, CONV_BYTES + REST_BYTES),  # layers 1 and 3
        ({"offload_group_size": 3}, ATTENTION_BYTES + REST_BYTES),  # layer 2
        ({"offload_group_size": 1, "offload_params": frozenset({"conv"})}, 4 * 128 * 3),
        ({"offload_group_size": 1, "offload_params": frozenset({"out_proj"})}, 2 * 4 * 128 * 128),
    ],
)
@pytest.mark.parametrize("step", [1, 3])
def test_a_slot_has_a_buffer_for_each_kind_that_is_in_the_ring(make_lfm2, fields, slot_bytes, step):
    found = offloaded(make_lfm2(), offload_prefetch_step=step, **fields)

    assert step * slot_bytes == found.pool_bytes


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"conv_bias": True}, "conv_bias=True in the config of model 'tiny-llama' has no"),
        ({"block_auto_adjust_ff_dim": True}, "block_auto_adjust_ff_dim=True in the config"),
        ({"num_hidden_layers": 5}, "must be 5 of conv, full_attention"),
        ({"layer_types": ["conv", "mamba"], "num_hidden_layers": 2}, "must be 2 of conv, full"),
        ({"layer_types": None}, "layer_types=() in the config"),
    ],
)
def test_a_config_without_arithmetic_is_refused(make_model, config, text):
    given = {"layer_types": KINDS, "num_hidden_layers": 4, **config}
    with pytest.raises(SettingError) as caught:
        parameter_shapes(make_model(architecture="Lfm2ForCausalLM", **given))

    assert text in str(caught.value)


def test_parts_of_a_convolution_are_refused_and_stages_are_not(make_lfm2):
    def spread(**sizes):
        return Setting(runner="v1", offload=OffloadConfig(cpu_offload_gb=1), engine_args=sizes)

    with pytest.raises(SettingError, match="tensor_parallel_size=2 of model 'tiny-llama'"):
        expect(spread(tensor_parallel_size=2), make_lfm2())
    last = expect(spread(pipeline_parallel_size=2), make_lfm2(), rank=1)
    assert (2, 3) == last.offloaded_layers
    assert "model.embedding_norm.weight" in last.all_params


def test_names_under_accelerate_are_transformers_own():
    model = load_model("seeded-lfm2")
    with torch.device("meta"):
        config = transformers.Lfm2Config.from_pretrained(model.path)
        live = transformers.Lfm2ForCausalLM(config)

    theirs = {name: tuple(param.shape) for name, param in live.named_parameters()}

    assert {p.name: p.shape for p in unfused_shapes(model)} == theirs
    offload = OffloadConfig(
        offload_backend="device_map", device_map={"": "cpu", "model.layers.5.conv.conv": "disk"}
    )
    expected = expect_hooks(Setting(engine="accelerate", offload=offload), model)
    assert ("model.layers.5.conv.conv.weight",) == expected.offloaded_params
    assert () == expected.unmatched_selectors
