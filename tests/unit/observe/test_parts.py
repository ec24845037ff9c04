"""The checkpoint's bytes as one rank holds them: rows, columns, shared heads, padded rows."""

import pytest
import torch
from safetensors.torch import save_file

from harness.observe.checkpoint import expected_digests
from harness.observe.source import WeightPatch, WeightSource
from harness.observe.weights import digest_of

HEAD, WIDTH = 4, 6


@pytest.fixture
def checkpoint(tmp_path):
    """Four heads of queries, one of keys and values; a vocabulary of ten."""
    tensors = {
        "l.q_proj.weight": torch.rand(4 * HEAD, WIDTH),
        "l.k_proj.weight": torch.rand(HEAD, WIDTH),
        "l.v_proj.weight": torch.rand(HEAD, WIDTH),
        "l.o_proj.weight": torch.rand(WIDTH, 4 * HEAD),
        "l.gate_proj.weight": torch.rand(8, WIDTH),
        "l.up_proj.weight": torch.rand(8, WIDTH),
        "lm_head.weight": torch.rand(10, WIDTH),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path, tensors


def digest(folder, name, shape, part, **source):
    found = expected_digests(
        WeightSource(folder=str(folder), **source),
        [name],
        torch.float32,
        shapes={name: shape},
        part=part,
    )
    return found[name]


@pytest.mark.parametrize("index", [0, 1])
def test_rows_of_each_fused_tensor_are_split_apart(checkpoint, index):
    folder, t = checkpoint
    rows = slice(4 * index, 4 * index + 4)
    whole = torch.cat([t["l.gate_proj.weight"][rows], t["l.up_proj.weight"][rows]])
    assert digest(folder, "l.gate_up_proj.weight", (8, WIDTH), (index, 2)) == digest_of(whole)


@pytest.mark.parametrize("index", [0, 1])
def test_columns_are_split(checkpoint, index):
    folder, t = checkpoint
    part = t["l.o_proj.weight"][:, 2 * HEAD * index : 2 * HEAD * (index + 1)].contiguous()
    assert digest(folder, "l.o_proj.weight", (WIDTH, 2 * HEAD), (index, 2)) == digest_of(part)


@pytest.mark.parametrize("index", [0, 1])
def test_a_head_of_keys_that_is_too_few_is_held_whole_by_both(checkpoint, index):
    folder, t = checkpoint
    queries = t["l.q_proj.weight"][2 * HEAD * index : 2 * HEAD * (index + 1)]
    held = torch.cat([queries, t["l.k_proj.weight"], t["l.v_proj.weight"]])
    assert digest(folder, "l.qkv_proj.weight", (4 * HEAD, WIDTH), (index, 2)) == digest_of(held)


def test_padded_rows_are_zeros_also_in_a_model_that_is_not_spread(checkpoint):
    folder, t = checkpoint
    padded = torch.cat([t["lm_head.weight"], torch.zeros(6, WIDTH)])
    assert digest(folder, "lm_head.weight", (16, WIDTH), (0, 1)) == digest_of(padded)
    assert digest(folder, "lm_head.weight", (8, WIDTH), (1, 2)) == digest_of(padded[8:])


def test_a_patch_is_laid_over_the_parameter_it_names_and_no_other(checkpoint):
    folder, t = checkpoint
    patch = WeightPatch(seed=3, num_values=5, params=("lm_head.weight",))
    places, values = patch.values({"lm_head.weight": (10, WIDTH)})["lm_head.weight"]
    patched = t["lm_head.weight"].clone()
    patched.view(-1)[places] = values
    assert digest(folder, "lm_head.weight", (10, WIDTH), (0, 1), patches=(patch,)) == digest_of(
        patched
    )
    plain = digest_of(t["l.o_proj.weight"])
    assert digest(folder, "l.o_proj.weight", (WIDTH, 16), (0, 1), patches=(patch,)) == plain
