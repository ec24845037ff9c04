import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import load_file

from harness.core import MatrixError
from harness.settings import load_model
from harness.settings.catalog import read_entries
from harness.settings.packed import is_packed, pack, quantization_config
from harness.settings.tensors import make_tensor

WEIGHT = "model.layers.0.self_attn.k_proj.weight"


def test_codes_unpack_by_the_formats_own_library_to_the_nearest_of_255_values():
    values = make_tensor(WEIGHT, (6, 8), seed=3)

    tensors = {n.rpartition(".")[2]: torch.tensor(t) for n, t in pack(WEIGHT, values)}

    shape = torch.Size(tensors["weight_shape"].tolist())
    codes = unpack_from_int32(tensors["weight_packed"], 8, shape)
    scale = tensors["weight_scale"].numpy()
    assert (6, 8) == tuple(shape)
    assert {127} == set(codes.abs().amax(dim=1).tolist())
    assert np.abs(codes.numpy() * scale - values).max() <= scale.max() / 2
    assert (scale == np.abs(values).max(axis=1, keepdims=True) / 127).all()


def test_a_packed_checkpoint_holds_three_tensors_for_each_linear_weight_and_the_rest_whole():
    model = load_model("seeded-llama-int8")
    tensors = load_file(f"{model.path}/model.safetensors")

    kinds = {n.rpartition(".")[2] for n in tensors if "_proj." in n}
    assert {"weight_packed", "weight_scale", "weight_shape"} == kinds
    assert not [n for n in tensors if "_proj." not in n and not n.endswith(".weight")]
    assert 3 * 7 * model.num_layers == sum("_proj." in n for n in tensors)
    assert (384, 32) == tuple(tensors["model.layers.7.mlp.up_proj.weight_packed"].shape)
    assert [384, 128] == tensors["model.layers.7.mlp.up_proj.weight_shape"].tolist()


def test_only_linear_weights_of_the_decoder_are_packed():
    config = {"quantization_config": quantization_config()}

    assert is_packed(config, WEIGHT)
    assert not is_packed({}, WEIGHT)
    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
        assert not is_packed(config, name)


def test_a_model_of_other_layers_is_not_packed(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(
        "models:\n  m: {source: seeded, architecture: Lfm2ForCausalLM, seed: 1, description: d, "
        "config: {}, quantization: int8}\n"
    )

    with pytest.raises(MatrixError, match="a Lfm2ForCausalLM is never packed"):
        read_entries(file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("quantization: int4", "int8"),
        ("config: {head_dim: 30}, quantization: int8", "head_dim=30 must be a multiple of 4"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_its_place(tmp_path, line, said):
    fields = f"source: seeded, architecture: LlamaForCausalLM, seed: 1, description: d, {line}"
    if "config:" not in line:
        fields += ", config: {}"
    file = tmp_path / "models.yaml"
    file.write_text(f"models:\n  m: {{{fields}}}\n")

    with pytest.raises(MatrixError, match=said) as caught:
        read_entries(file)

    assert f"{file}:2:" in str(caught.value)
