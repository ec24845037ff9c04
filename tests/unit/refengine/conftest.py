"""A tiny checkpoint, an environment without surprises, and engines that are always shut down."""

import json

import pytest
import torch

from harness.refengine import LLM, envs

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "dtype": "float32",
    "eos_token_id": 2,
}


@pytest.fixture
def engine_env(monkeypatch):
    """Only what a test sets: the core in process, everything else unset."""
    torch.set_num_threads(1)
    for name in envs.DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    return monkeypatch


@pytest.fixture
def make_checkpoint(tmp_path):
    """A folder with a config.json; `load_format="dummy"` does the rest."""

    def make(**changes):
        folder = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        return str(folder)

    return make


@pytest.fixture
def make_llm(engine_env, make_checkpoint):
    """An engine on dummy weights; shut down when the test ends."""
    engines = []

    def make(model=None, **args):
        llm = LLM(model or make_checkpoint(), **{"load_format": "dummy", **args})
        engines.append(llm)
        return llm

    make.engines = engines
    yield make
    for llm in engines:
        llm.shutdown()
