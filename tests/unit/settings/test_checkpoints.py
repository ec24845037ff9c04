"""Seeded checkpoints: same seed, same bytes; safe for many processes; read by others."""

import hashlib
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from harness.core import ModelNotFoundError, UsageError
from harness.settings.catalog import complete_config
from harness.settings.checkpoints import (
    ensure_checkpoint,
    is_intact,
    read_config,
    to_bytes,
)
from harness.settings.tensors import list_tensor_shapes, make_tensor

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
}
CONFIG = complete_config("LlamaForCausalLM", SMALL)
GOLDEN_LFM2 = "13ed1f721f70018f52bd4cb41b2855414a8c02495001c5dcf2e711e7f45eb3bd"
GOLDEN = "7a1af4be05f5e093a8adbcfd22f38918d57fd8540bd7f65ff728da98c9d24a89"


def hash_of(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_same_seed_gives_the_same_bytes(tmp_path):
    first = ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path / "a")
    second = ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path / "b")
    assert first.name == second.name
    assert hash_of(first) == hash_of(second)


def test_bytes_are_those_of_every_platform_and_numpy(tmp_path):
    folder = ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path)
    assert hash_of(folder) == GOLDEN


def test_another_seed_or_config_gives_another_checkpoint(tmp_path):
    first = ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path)
    second = ensure_checkpoint("m", CONFIG, seed=2, cache_dir=tmp_path)
    third = ensure_checkpoint("m", {**CONFIG, "vocab_size": 65}, seed=1, cache_dir=tmp_path)
    assert len({first, second, third}) == 3
    assert len({hash_of(first), hash_of(second), hash_of(third)}) == 3


def test_an_intact_checkpoint_is_reused_not_made_again(tmp_path, monkeypatch):
    from harness.settings import checkpoints

    folder = ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path)
    monkeypatch.setattr(checkpoints, "write_checkpoint", None)
    assert folder == ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "sha256.json"])
@pytest.mark.parametrize("damage", ["truncated", "removed"])
def test_a_damaged_checkpoint_is_made_again(tmp_path, name, damage):
    folder = ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path)
    expected = hash_of(folder)
    if damage == "removed":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    assert not is_intact(folder)
    assert folder == ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path)
    assert is_intact(folder)
    assert expected == hash_of(folder)
    assert [folder] == list(tmp_path.iterdir()), "nothing is left beside it"


def make_at_once(cache_dir, barrier, results):
    barrier.wait(timeout=60)
    folder = ensure_checkpoint("m", CONFIG, seed=3, cache_dir=Path(cache_dir))
    results.put((str(folder), hash_of(folder)))


def test_processes_that_make_one_checkpoint_at_once_agree(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(3), spawn.Queue()
    workers = [
        spawn.Process(target=make_at_once, args=(str(tmp_path), barrier, results)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    seen = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    assert len(seen) == 1
    assert len(list(tmp_path.iterdir())) == 1, "scratch folders are gone"


def test_losing_the_race_keeps_the_winners_copy(tmp_path, monkeypatch):
    from harness.settings import checkpoints

    write = checkpoints.write_checkpoint
    inodes = []

    def write_and_be_overtaken(folder, config, *, seed):
        write(folder, config, seed=seed)
        monkeypatch.setattr(checkpoints, "write_checkpoint", write)
        winner = ensure_checkpoint("m", config, seed=seed, cache_dir=tmp_path)
        inodes.append((winner / "model.safetensors").stat().st_ino)

    monkeypatch.setattr(checkpoints, "write_checkpoint", write_and_be_overtaken)
    folder = ensure_checkpoint("m", CONFIG, seed=1, cache_dir=tmp_path)
    assert inodes == [(folder / "model.safetensors").stat().st_ino]
    assert [folder] == list(tmp_path.iterdir())


def test_a_cache_folder_that_cannot_be_written_is_a_usage_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(UsageError, match="set HARNESS_CACHE") as caught:
        ensure_checkpoint("m", CONFIG, seed=1, cache_dir=blocked)
    assert "\n" not in str(caught.value)


def test_bfloat16_rounds_to_nearest_even_as_torch_does():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    halves = np.arange(1, 400, dtype=np.uint32) * 0x8000 + 0x3F800000
    values = np.concatenate([make_tensor("x", (64, 64), seed=1).ravel(), halves.view(np.float32)])
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    assert expected == to_bytes(values, "bfloat16")


def test_matrices_are_spread_as_a_normal_and_norms_are_ones():
    values = make_tensor("model.layers.0.mlp.up_proj.weight", (400, 250), seed=5)
    assert values.mean() == pytest.approx(0, abs=1e-3)
    assert values.std() == pytest.approx(0.09, rel=0.01)
    assert make_tensor("model.embed_tokens.weight", (400, 250), seed=5).std() > 0.25
    assert (make_tensor("model.norm.weight", (8,), seed=5) == 1).all()


def test_different_tensors_of_one_checkpoint_differ():
    q0, q1 = (
        make_tensor(f"model.layers.{i}.self_attn.q_proj.weight", (8, 8), seed=1) for i in range(2)
    )
    assert (q0 != q1).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_file_reads_back_through_the_safetensors_package(tmp_path, dtype, tied):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors")
    config = {**CONFIG, "torch_dtype": dtype, "tie_word_embeddings": tied}
    folder = ensure_checkpoint("m", config, seed=1, cache_dir=tmp_path)
    shapes = list_tensor_shapes(config)
    assert tied == ("lm_head.weight" not in shapes)
    with safetensors.safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(shapes) == set(file.keys())
        assert file.metadata() == {"format": "pt"}
        for name, shape in shapes.items():
            actual = file.get_tensor(name)
            expected = torch.from_numpy(make_tensor(name, shape, seed=1)).to(actual.dtype)
            assert actual.dtype == getattr(torch, dtype)
            assert torch.equal(expected, actual)


def test_read_config_says_what_is_wrong(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"cannot read config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelNotFoundError, match="not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelNotFoundError, match="must hold a JSON object"):
        read_config(tmp_path)


def test_config_on_disk_is_the_config_given(tmp_path):
    folder = ensure_checkpoint("owner/m", CONFIG, seed=1, cache_dir=tmp_path)
    assert json.loads((folder / "config.json").read_text()) == CONFIG
    assert folder.parent == tmp_path, "a slash in the name makes no folder"


def test_an_lfm2_has_the_same_bytes_everywhere_and_its_convolutions_are_not_faint(tmp_path):
    config = complete_config(
        "Lfm2ForCausalLM", {**SMALL, "layer_types": ["conv", "full_attention"]}
    )
    folder = ensure_checkpoint("m", config, seed=1, cache_dir=tmp_path)
    assert hash_of(folder) == GOLDEN_LFM2
    shapes = list_tensor_shapes(config)
    name = "model.layers.0.conv.conv.weight"
    assert shapes[name] == (32, 1, 3)
    assert 0.5 < make_tensor(name, (512, 1, 3), seed=1).std() < 0.7
    assert "lm_head.weight" not in shapes, "tied unless it says else"
