import pytest

from harness.core import ModelSpec, Workload

CONFIG = {
    "num_hidden_layers": 8,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 352,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}


@pytest.fixture
def make_model():
    """A ModelSpec of tiny-llama's shape; `config` entries replace its own."""

    def make(*, name="tiny-llama", architecture="LlamaForCausalLM", dtype="float32", **config):
        return ModelSpec(
            name=name,
            architecture=architecture,
            config={k: v for k, v in {**CONFIG, **config}.items() if v is not ...},
            dtype=dtype,
            path="nowhere",
        )

    return make


@pytest.fixture
def make_workload(make_model):
    def make(workload_name="short", **model):
        return Workload(name=workload_name, model=make_model(**model), prompt_token_ids=((1, 2),))

    return make
