"""Which parameters accelerate must take away, against counts and bytes worked out by hand."""

import pytest

from harness.api import plan_controls
from harness.core import OffloadConfig, Setting
from harness.launch import engine_supports
from harness.plan import build_plan, expect, unsupported_reason
from harness.plan.accelerate import is_away, unfused_shapes
from harness.plan.build import CONTROL_FAULT
from harness.settings import load_model, load_workload

LAYER_BYTES = 738_304
"""Of tiny-llama and the seeded models, in float32: 8 of 8 x 128 and so on, see below."""
EMBED_BYTES = 1024 * 128 * 4


def setting(backend="none", *, device_map=None, **engine_args):
    offload = OffloadConfig()
    if device_map is not None:
        offload = OffloadConfig(offload_backend="device_map", device_map=device_map)
    elif backend != "none":
        offload = OffloadConfig(offload_backend=backend)
    return Setting(engine="accelerate", offload=offload, engine_args=engine_args)


def test_a_control_is_one_accelerate_can_run_also_where_nothing_offloads(tiny):
    workload = load_workload("short", tiny)
    supports = engine_supports("accelerate")

    plan = build_plan([setting()], [workload], supports=supports)

    (control,) = (p.case for p in plan.cases if p.case.role == "control")
    assert "cpu_offload" == control.target.offload.resolved_backend
    assert control.expected.offloaded_bytes
    assert unsupported_reason(control.target, tiny, supports) is None
    assert () == plan.unsupported


def test_the_control_of_a_comparison_is_one_accelerate_can_run(tiny):
    workload = load_workload("short", tiny)

    null, control = plan_controls(setting(), [setting()], workload)

    assert {"none"} == {s.offload.resolved_backend for s in (null.case.target, null.case.baseline)}
    assert "cpu_offload" == control.case.target.offload.resolved_backend
    assert (CONTROL_FAULT,) == control.case.target.faults


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny-llama")


@pytest.fixture(scope="module")
def tied():
    return load_model("seeded-llama-tied")


def test_names_are_those_of_transformers_not_of_vllm(tiny):
    names = [shape.name for shape in unfused_shapes(tiny)]

    assert [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
    ] == names[:10]
    assert 1 + 8 * 9 + 2 == len(names)
    assert ["model.norm.weight", "lm_head.weight"] == names[-2:]


def test_fewer_key_heads_make_smaller_key_and_value_matrices(tiny):
    shapes = {s.relative_name: s.shape for s in unfused_shapes(tiny) if s.layer_idx == 0}
    config = tiny.config
    head_dim = config["hidden_size"] // config["num_attention_heads"]

    assert shapes["self_attn.q_proj.weight"] == (config["hidden_size"], config["hidden_size"])
    kv_rows = config["num_key_value_heads"] * head_dim
    assert shapes["self_attn.k_proj.weight"] == (kv_rows, config["hidden_size"])
    assert shapes["self_attn.v_proj.weight"] == (kv_rows, config["hidden_size"])
    assert shapes["mlp.up_proj.weight"] == (config["intermediate_size"], config["hidden_size"])


def test_qwen3_has_norms_on_queries_and_keys():
    names = [shape.relative_name for shape in unfused_shapes(load_model("seeded-qwen3"))]

    assert 8 == names.count("self_attn.q_norm.weight") == names.count("self_attn.k_norm.weight")


def test_a_tied_output_matrix_is_no_parameter_of_its_own(tied):
    names = [shape.name for shape in unfused_shapes(tied)]

    assert "lm_head.weight" not in names
    assert 1 + 16 * 9 + 1 == len(names)


@pytest.mark.parametrize("backend", ["cpu_offload", "disk_offload"])
def test_the_whole_model_is_taken_away(tiny, backend):
    expected = expect(setting(backend), tiny)

    assert backend == expected.backend
    assert 8 * LAYER_BYTES + 2 * EMBED_BYTES + 128 * 4 == expected.offloaded_bytes
    assert expected.offloaded_params == expected.all_params
    assert tuple(range(8)) == expected.offloaded_layers
    assert not expected.is_pinned
    assert not expected.is_uva
    assert 0 == expected.pool_bytes == expected.slot_capacity


def test_half_the_width_is_half_the_bytes(tiny):
    full = expect(setting("cpu_offload"), tiny)
    half = expect(setting("cpu_offload", dtype="bfloat16"), tiny)

    assert full.offloaded_bytes == 2 * half.offloaded_bytes


def test_without_offload_nothing_is_away_and_every_name_is_known(tiny):
    expected = expect(setting(), tiny)

    assert () == expected.offloaded_params
    assert 75 == len(expected.all_params)


@pytest.mark.parametrize(
    ("device_map", "layers", "num_bytes"),
    [
        ({"": "cpu", "model.layers.2": "disk"}, (2,), LAYER_BYTES),
        ({"": "cpu", "model.layers.1": "disk", "lm_head": "disk"}, (1,), LAYER_BYTES + EMBED_BYTES),
        ({"": "cpu", "model.layers": "disk"}, tuple(range(8)), 8 * LAYER_BYTES),
        ({"": "cpu", "model.layers.1.input_layernorm": "disk"}, (1,), 128 * 4),
    ],
)
def test_a_map_takes_away_what_is_on_disk(tiny, device_map, layers, num_bytes):
    expected = expect(setting(device_map=device_map), tiny)

    assert layers == expected.offloaded_layers
    assert num_bytes == expected.offloaded_bytes


@pytest.mark.parametrize("device_map", [{"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_place_that_is_not_the_disk_is_no_offload(tiny, device_map, device):
    expected = expect(setting(device_map=device_map, device=device), tiny)

    assert "device_map" == expected.backend
    assert () == expected.offloaded_params


def test_on_a_gpu_what_is_mapped_to_the_cpu_is_away_too(tiny):
    places = {"": "cuda:0", "model.layers.2": "disk", "model.layers.3": "cpu"}

    expected = expect(setting(device_map=places, device="cuda"), tiny)

    assert (2, 3) == expected.offloaded_layers


def test_a_name_that_only_starts_alike_is_another_module():
    places = {"": "cpu", "model.layers.1": "disk"}

    assert is_away("model.layers.1.mlp.up_proj.weight", places, "cpu")
    assert not is_away("model.layers.11.mlp.up_proj.weight", places, "cpu")
    assert not is_away("model.layers.1.weight", {"lm_head": "disk"}, "cpu")


@pytest.mark.parametrize(
    ("places", "num_bytes"),
    [
        ({"": "cpu", "model.embed_tokens": "disk", "lm_head": "disk"}, EMBED_BYTES),
        ({"": "cpu", "model.embed_tokens": "disk"}, 0),
        ({"": "cpu", "lm_head": "disk"}, 0),
    ],
    ids=["both", "only-the-embedding", "only-the-output"],
)
def test_a_tied_matrix_is_away_only_when_all_its_names_are(tied, places, num_bytes):
    assert num_bytes == expect(setting(device_map=places), tied).offloaded_bytes


def test_an_entry_that_names_nothing_is_told(tiny):
    places = {
        "": "cpu",
        "model.layers.9": "disk",
        "model.rotary_emb": "cpu",
        "model.layer.1": "disk",
    }

    expected = expect(setting(device_map=places), tiny)

    assert ("model.layer.1", "model.layers.9") == expected.unmatched_selectors


def test_buffers_that_no_model_has_are_told(tiny):
    assert ("offload_buffers",) == (
        expect(setting("cpu_offload", offload_buffers=True), tiny).unmatched_selectors
    )
    assert () == expect(setting(offload_buffers=True), tiny).unmatched_selectors


def test_a_plan_has_a_control_even_where_no_target_offloads(tiny):
    plan = build_plan([setting(device_map={"": "cpu"})], [load_workload("short", tiny)])

    (control,) = [p.case for p in plan.cases if p.case.role == "control"]
    assert "cpu_offload" == control.target.offload.offload_backend
    assert (CONTROL_FAULT,) == control.target.faults
