import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from harness.core import GIB, Expectation, OffloadConfig, Setting, SettingError
from harness.plan import expect, parameter_shapes
from harness.plan.shapes import loaded_shapes
from tests.strategies import model_specs, offload_configs

quick = hypothesis_settings(max_examples=80, deadline=None, derandomize=True, database=None)
MLP = frozenset({"gate_up_proj", "down_proj"})
LAYER_BYTES = 738_304
"""Of tiny-llama in float32, summed by hand: 131072 + 65536 + 360448 + 180224 + 512 + 512."""


def offloaded(model, **fields):
    return expect(Setting(runner="v1", offload=OffloadConfig(**fields)), model)


def test_llama_parameters_are_named_and_ordered_as_the_engine_has_them(make_model):
    shapes = [(p.name, p.shape) for p in parameter_shapes(make_model(num_hidden_layers=1))]

    expected = [
        ("model.embed_tokens.weight", (1024, 128)),
        ("model.layers.0.self_attn.qkv_proj.weight", (256, 128)),
        ("model.layers.0.self_attn.o_proj.weight", (128, 128)),
        ("model.layers.0.mlp.gate_up_proj.weight", (704, 128)),
        ("model.layers.0.mlp.down_proj.weight", (128, 352)),
        ("model.layers.0.input_layernorm.weight", (128,)),
        ("model.layers.0.post_attention_layernorm.weight", (128,)),
        ("model.norm.weight", (128,)),
        ("lm_head.weight", (1024, 128)),
    ]
    assert expected == shapes


def test_mistral_has_llamas_parameters_and_qwen3_two_norms_more(make_model):
    llama, mistral, qwen3 = (
        [p.name for p in parameter_shapes(make_model(architecture=f"{name}ForCausalLM"))]
        for name in ("Llama", "Mistral", "Qwen3")
    )

    assert llama == mistral
    assert llama == [name for name in qwen3 if "_norm." not in name]
    at = qwen3.index("model.layers.3.self_attn.o_proj.weight")
    assert [
        "model.layers.3.self_attn.q_norm.weight",
        "model.layers.3.self_attn.k_norm.weight",
        "model.layers.3.mlp.gate_up_proj.weight",
    ] == qwen3[at + 1 : at + 4]


def test_qwen3_norms_have_the_size_of_a_head_and_head_dim_is_its_own(make_model):
    model = make_model(architecture="Qwen3ForCausalLM", head_dim=64, num_hidden_layers=1)
    shapes = {p.relative_name: p.shape for p in parameter_shapes(model)}

    assert (64,) == shapes["self_attn.q_norm.weight"] == shapes["self_attn.k_norm.weight"]
    assert (512, 128) == shapes["self_attn.qkv_proj.weight"]
    assert (128, 256) == shapes["self_attn.o_proj.weight"]


def test_tied_model_has_no_lm_head_and_old_configs_no_head_dim(make_model):
    names = [p.name for p in parameter_shapes(make_model(tie_word_embeddings=True))]
    old = make_model(head_dim=..., num_key_value_heads=..., num_hidden_layers=1)

    assert "lm_head.weight" not in names
    assert (384, 128) == {p.relative_name: p.shape for p in parameter_shapes(old)}[
        "self_attn.qkv_proj.weight"
    ]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"architecture": "OPTForCausalLM"}, "'OPTForCausalLM' of model 'tiny-llama' has no place"),
        ({"hidden_size": ...}, "hidden_size=None in the config of model 'tiny-llama' must be"),
        ({"vocab_size": "x"}, "vocab_size='x' in the config"),
        ({"intermediate_size": 0}, "intermediate_size=0 in the config"),
        ({"attention_bias": True}, "attention_bias=True in the config"),
        ({"mlp_bias": True}, "mlp_bias=True in the config"),
        ({"dtype": "int8"}, "dtype='int8' must be one of float32"),
    ],
)
def test_model_without_arithmetic_is_refused(make_model, model, text):
    with pytest.raises(SettingError) as caught:
        parameter_shapes(make_model(**model))

    assert text in str(caught.value)


def test_without_offload_nothing_is_expected_of_anything(make_model):
    names = tuple(p.name for p in parameter_shapes(make_model()))
    bare = Expectation(runner="v2", backend="none", all_params=names)
    assert bare == expect(Setting(runner="v2"), make_model())


def test_every_parameter_of_the_model_is_expected_whatever_is_offloaded(make_model):
    names = offloaded(make_model(), cpu_offload_gb=1).all_params
    assert {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} < set(names)
    tied = make_model(tie_word_embeddings=True)
    assert set(names) - {"lm_head.weight"} == set(offloaded(tied, cpu_offload_gb=1).all_params)


def test_full_uva_takes_every_layer_and_nothing_outside_the_stack(make_model):
    expected = offloaded(make_model(), cpu_offload_gb=1)

    assert tuple(range(8)) == expected.offloaded_layers
    assert 8 * LAYER_BYTES == expected.offloaded_bytes
    assert all(name.startswith("model.layers.") for name in expected.offloaded_params)
    assert (True, True, 0, {}) == (
        expected.is_pinned, expected.is_uva, expected.pool_bytes, expected.slots
    )  # fmt: skip


@pytest.mark.parametrize(
    ("budget_bytes", "num_params", "taken_bytes"),
    [
        (1, 1, 131_072),
        (131_072, 1, 131_072),
        (131_073, 2, 196_608),
        (LAYER_BYTES, 6, LAYER_BYTES),
        (LAYER_BYTES + 1, 7, LAYER_BYTES + 131_072),
        (8 * LAYER_BYTES, 48, 8 * LAYER_BYTES),
    ],
)
def test_budget_is_checked_before_each_parameter(make_model, budget_bytes, num_params, taken_bytes):
    expected = offloaded(make_model(), cpu_offload_gb=budget_bytes / GIB)

    assert (num_params, taken_bytes) == (len(expected.offloaded_params), expected.offloaded_bytes)


def test_budget_counts_selected_parameters_only(make_model):
    expected = offloaded(make_model(), cpu_offload_gb=(360_448 + 1) / GIB, cpu_offload_params=MLP)

    assert (
        "model.layers.0.mlp.gate_up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    ) == expected.offloaded_params


def test_budget_below_a_byte_takes_nothing_yet_asks_for_uva(make_model):
    expected = offloaded(make_model(), cpu_offload_gb=1e-12)

    assert ("uva", 0, ()) == (
        expected.backend, expected.offloaded_bytes, expected.offloaded_layers
    )  # fmt: skip


def test_pin_and_uva_switches_are_expected_as_asked(make_model):
    uva = offloaded(make_model(), cpu_offload_gb=1, pin_memory=False, uva=False)
    prefetch = offloaded(make_model(), offload_group_size=2)

    assert (False, False) == (uva.is_pinned, uva.is_uva)
    assert (True, False) == (prefetch.is_pinned, prefetch.is_uva)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("mlp", True),
        ("mlp.down_proj", True),
        ("down_proj", True),
        ("weight", True),
        ("down", False),
        ("proj", False),
        ("gate_proj", False),
        ("layers.0", False),
        ("lm_head", False),
    ],
)
@pytest.mark.parametrize("backend", ["uva", "prefetch"])
def test_selectors_are_whole_segments_within_the_layer(make_model, backend, selector, matches):
    fields = (
        {"cpu_offload_gb": 1, "cpu_offload_params": frozenset({selector})}
        if backend == "uva"
        else {"offload_group_size": 1, "offload_params": frozenset({selector})}
    )

    expected = offloaded(make_model(), **fields)

    assert matches is bool(expected.offloaded_params)
    assert (() if matches else (selector,)) == expected.unmatched_selectors


def test_only_the_selector_that_matches_nothing_is_named(make_model):
    selectors = frozenset({"down_proj", "gate_proj", "up_proj"})
    expected = offloaded(make_model(), offload_group_size=1, offload_params=selectors)

    assert ("gate_proj", "up_proj") == expected.unmatched_selectors
    assert 8 == len(expected.offloaded_params)


def test_ignored_requests_are_carried_over(make_model):
    expected = offloaded(make_model(), offload_group_size=2, cpu_offload_gb=1)

    assert "prefetch" == expected.backend
    assert ("cpu_offload_gb=1",) == expected.ignored_requests


@pytest.mark.parametrize(
    ("group", "num", "layers"),
    [
        (1, 1, (0, 1, 2, 3, 4, 5, 6, 7)),
        (2, 1, (1, 3, 5, 7)),
        (4, 2, (2, 3, 6, 7)),
        (8, 2, (6, 7)),
        (3, 1, (2, 5)),
        (5, 2, (3, 4)),
        (9, 1, ()),
        (9, 3, (6, 7)),
    ],
)
def test_prefetch_takes_the_last_num_of_each_group(make_model, group, num, layers):
    expected = offloaded(make_model(), offload_group_size=group, offload_num_in_group=num)

    assert layers == expected.offloaded_layers
    assert LAYER_BYTES * len(layers) == expected.offloaded_bytes
    assert (LAYER_BYTES if layers else 0) == expected.pool_bytes


def test_ring_is_mapped_back_to_layers(make_model):
    expected = offloaded(make_model(), offload_group_size=2, offload_prefetch_step=3)

    assert {1: 0, 3: 1, 5: 2, 7: 0} == expected.slots
    assert {1: 7, 3: 3, 5: 5, 7: 1} == expected.refill_after
    assert (3, 3 * LAYER_BYTES) == (expected.slot_capacity, expected.pool_bytes)


def test_unused_slots_count_in_the_pool(make_model):
    expected = offloaded(make_model(), offload_group_size=4, offload_prefetch_step=5)

    assert {3: 0, 7: 1} == expected.slots
    assert (5, 5 * LAYER_BYTES) == (expected.slot_capacity, expected.pool_bytes)


def test_pool_holds_selected_parameters_only(make_model):
    expected = offloaded(
        make_model(), offload_group_size=8, offload_num_in_group=2, offload_params=MLP
    )

    assert (2 * 540_672, 540_672) == (expected.offloaded_bytes, expected.pool_bytes)


def test_graphs_of_the_embedded_engine_keep_one_module_to_copy_into_on_forward(make_model):
    copying, views = (OffloadConfig(cpu_offload_gb=1, uva=uva) for uva in (False, True))
    graphs = Setting(offload=copying, enforce_eager=False)

    kept = [
        expect(setting, make_model()).graph_bytes
        for setting in (graphs, replace(graphs, enforce_eager=True), replace(graphs, offload=views),
                        replace(graphs, engine="vllm"), graphs.baseline())
    ]  # fmt: skip
    assert [LAYER_BYTES, 0, 0, 0, 0] == kept


def test_dtype_of_the_setting_wins_over_the_models(make_model):
    model = make_model(dtype="float32", torch_dtype="bfloat16")
    offload = OffloadConfig(cpu_offload_gb=1)

    sizes = {
        dtype: expect(Setting(offload=offload, engine_args=args), model).offloaded_bytes
        for dtype, args in {
            None: {}, "float32": {"dtype": "float32"}, "half": {"dtype": "half"},
            "auto": {"dtype": "auto"},
        }.items()
    }  # fmt: skip

    full = 8 * LAYER_BYTES
    assert {None: full, "float32": full, "half": full // 2, "auto": full // 2} == sizes


@quick
@given(model=model_specs(), offload=offload_configs())
def test_expectation_never_contradicts_itself(model, offload):
    params = {p.name: p for p in parameter_shapes(model)}
    expected = expect(Setting(offload=offload), model)

    chosen = [params[name] for name in expected.offloaded_params]
    assert expected.offloaded_bytes == sum(math.prod(p.shape) * (4 if p.dtype == "float32" else 2)
                                           for p in chosen)  # fmt: skip
    assert set(expected.offloaded_layers) == {p.layer_idx for p in chosen}
    assert list(expected.offloaded_params) == [n for n in params if n in expected.offloaded_params]
    is_ring = expected.backend == "prefetch"
    assert set(expected.slots) == (set(expected.offloaded_layers) if is_ring else set())
    assert set(expected.refill_after) == set(expected.refill_after.values()) == set(expected.slots)
    assert all(slot < expected.slot_capacity for slot in expected.slots.values())
    if expected.backend == "none":
        assert not expected.offloaded_bytes
        assert not expected.is_pinned


def packed(model):
    weights = {"format": "pack-quantized", "quant_method": "compressed-tensors"}
    return replace(model, config={**model.config, "quantization_config": weights})


def test_packed_weights_are_codes_scales_and_what_loading_deletes(make_model):
    model = packed(make_model(num_hidden_layers=1))
    loaded = {p.relative_name: (p.shape, p.dtype, p.is_transient) for p in loaded_shapes(model)}

    assert ((128, 64), "int32", False) == loaded["self_attn.qkv_proj.weight_packed"]
    assert ((256,), "float32", False) == loaded["self_attn.qkv_proj.weight_scale"]
    assert ((6,), "int64", True) == loaded["self_attn.qkv_proj.weight_shape"]
    assert ((352, 32), "int32", False) == loaded["mlp.down_proj.weight_packed"]
    assert "lm_head.weight" in loaded
    names = {p.relative_name for p in parameter_shapes(model)}
    assert {n for n in loaded if not n.endswith("weight_shape")} == names


def test_vllm_keeps_a_shape_beside_the_codes(make_model):
    model = packed(make_model(num_hidden_layers=1))
    uva = OffloadConfig(cpu_offload_gb=1)
    own, vllm = (
        expect(Setting(engine=engine, runner="v1", offload=uva), model)
        for engine in ("reference", "vllm")
    )

    kept = [n for n in vllm.offloaded_params if n.endswith("weight_shape")]
    assert 4 == len(kept)
    assert own.offloaded_bytes + 4 * 16 == vllm.offloaded_bytes
    assert set(own.offloaded_params) == set(vllm.offloaded_params) - set(kept)


def test_what_only_loading_needs_is_taken_from_the_budget_all_the_same(make_model):
    """Codes of 32,768 bytes, scales of 1,024, shapes of 48: the next one is offloaded or not."""
    model, after_shapes = packed(make_model(num_hidden_layers=1)), 32_768 + 1_024 + 48
    num = [
        len(offloaded(model, cpu_offload_gb=num_bytes / GIB).offloaded_params)
        for num_bytes in (after_shapes, after_shapes + 1)
    ]

    assert [2, 3] == num


def test_another_quantization_has_no_arithmetic(make_model):
    model = make_model()
    model = replace(model, config={**model.config, "quantization_config": {"quant_method": "fp8"}})

    with pytest.raises(SettingError, match=r"quantization .fp8. of model .* known: pack-quantized"):
        parameter_shapes(model)
