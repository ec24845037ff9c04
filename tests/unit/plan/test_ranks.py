"""What each rank of a spread model must hold: rows, columns, heads, layers, to the byte."""

import pytest

from harness.core import OffloadConfig, Setting, SettingError
from harness.plan import expect, parameter_shapes
from harness.plan.build import build_pair
from harness.plan.ranks import count_ranks, of_rank, stage_layers

PREFETCH = OffloadConfig(offload_group_size=1, offload_prefetch_step=3)


def spread(tensor=1, pipeline=1, **fields):
    args = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    return Setting(engine="vllm", engine_args=args, **fields)


def shapes_of(model, setting, rank=0):
    held = of_rank(parameter_shapes(model), model, setting, rank)
    return {param.name: param.shape for param in held}


def test_columns_and_rows_are_halved_and_norms_are_not(make_model):
    shapes = shapes_of(make_model(), spread(2))
    layer = "model.layers.0."
    assert shapes[f"{layer}self_attn.qkv_proj.weight"] == ((2 + 2 * 1) * 32, 128)
    assert shapes[f"{layer}self_attn.o_proj.weight"] == (128, 64)
    assert shapes[f"{layer}mlp.gate_up_proj.weight"] == (352, 128)
    assert shapes[f"{layer}mlp.down_proj.weight"] == (128, 176)
    assert shapes[f"{layer}input_layernorm.weight"] == (128,)
    assert shapes["lm_head.weight"] == (512, 128)


def test_heads_of_keys_fewer_than_ranks_are_held_by_several(make_model):
    shapes = shapes_of(make_model(num_key_value_heads=1), spread(2))
    assert shapes["model.layers.0.self_attn.qkv_proj.weight"] == ((2 + 2 * 1) * 32, 128)


def test_a_vocabulary_is_padded_before_it_is_split(make_model):
    assert shapes_of(make_model(vocab_size=1000), spread(2))["lm_head.weight"] == (512, 128)


@pytest.mark.parametrize(
    "config", [{"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32},
               {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32}]
)  # fmt: skip
def test_heads_that_cannot_be_split_are_refused(make_model, config):
    with pytest.raises(SettingError, match="does not divide"):
        shapes_of(make_model(**config), spread(2))


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [(8, 2, [4, 4]), (7, 2, [4, 3]), (10, 4, [2, 3, 3, 2]), (3, 1, [3])],
)
def test_what_does_not_divide_goes_to_middle_stages(num_layers, num_stages, sizes):
    stages = [stage_layers(num_layers, stage, num_stages) for stage in range(num_stages)]
    assert [len(stage) for stage in stages] == sizes
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))


def test_each_stage_holds_its_layers_and_its_end_of_the_model(make_model):
    first, last = (shapes_of(make_model(), spread(1, 2), rank) for rank in (0, 1))
    assert set(first) | set(last) == {p.name for p in parameter_shapes(make_model())}
    assert not set(first) & set(last)
    assert ("model.embed_tokens.weight" in first, "lm_head.weight" in last) == (True, True)
    assert "model.layers.3.mlp.down_proj.weight" in first
    assert "model.layers.4.mlp.down_proj.weight" in last


PARTITION = "VLLM_PP_LAYER_PARTITION"


@pytest.mark.parametrize(
    ("text", "stages"),
    [("3,5", [[0, 1, 2], [3, 4, 5, 6, 7]]), (" 6 , 2 ", [[0, 1, 2, 3, 4, 5], [6, 7]]),
     ("8,0", [[0, 1, 2, 3, 4, 5, 6, 7], []])],
)  # fmt: skip
def test_layers_are_spread_as_the_setting_partitions_them(make_model, text, stages):
    setting = spread(2, 2, env={PARTITION: text}, offload=PREFETCH)

    found = [expect(setting, make_model(), rank=rank).offloaded_layers for rank in range(4)]

    assert [tuple(stages[rank // 2]) for rank in range(4)] == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3,4", "is of 7 layers, model .* has 8; the numbers must sum to that"),
        ("2,3,3", "is of 3 stages, pipeline_parallel_size=2; give a number for each stage"),
        ("3,", "must be the layers of each stage, for example 3,5"),
        ("", "must be the layers of each stage"),
        ("-1,9", "must be the layers of each stage"),
        ("a,b", "must be the layers of each stage"),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(make_model, text, said):
    setting = spread(1, 2, env={PARTITION: text})
    with pytest.raises(SettingError, match=f"^env {PARTITION}='{text}' {said}"):
        expect(setting, make_model())


def test_a_partition_is_none_where_it_is_unset(make_model):
    setting = spread(1, 2, env={PARTITION: None}, offload=PREFETCH)
    assert expect(setting, make_model()).offloaded_layers == (0, 1, 2, 3)


def test_a_tied_matrix_is_at_both_ends(make_model):
    tied = make_model(tie_word_embeddings=True)
    assert all(
        "model.embed_tokens.weight" in shapes_of(tied, spread(1, 2), rank) for rank in (0, 1)
    )


def test_a_ring_is_of_one_stages_layers(make_model):
    expected = expect(spread(1, 2, offload=PREFETCH), make_model(), rank=1)
    assert expected.offloaded_layers == (4, 5, 6, 7)
    assert expected.slots == {4: 0, 5: 1, 6: 2, 7: 0}


def test_a_pair_carries_what_every_further_rank_must_show(make_workload):
    setting = spread(2, 2, offload=PREFETCH)
    case = build_pair(setting.baseline(), setting, make_workload()).case
    assert count_ranks(setting) == 4
    assert [e.offloaded_layers for e in (case.expected, *case.expected_ranks)] == [
        *[(0, 1, 2, 3)] * 2,
        *[(4, 5, 6, 7)] * 2,
    ]
