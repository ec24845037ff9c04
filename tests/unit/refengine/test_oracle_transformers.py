"""Greedy tokens against transformers' own models, in shapes that no model of models.yaml has.

Heads wider than the hidden size, llama3 rope scaling, groups of four; the models of models.yaml
and more offload modes: tests/integration/test_oracle_models.py.

float32: every token equal. bfloat16: equal up to the first near-tie, whose margin is shown.
Between runners and offload modes: every token equal, in both dtypes.
"""

import logging
import random

import pytest
import torch
import transformers

from harness.refengine import LLM, SamplingParams

NUM_TOKENS = 64
LENGTHS = (1, 2, 7, 31, 64, 100, 193, 256)
NEAR_TIE_NATS = 0.1
"""Above this, a difference in bfloat16 is no near-tie. Typical margins here are 1 to 3 nats."""

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS = {
    "llama3-rope": (
        "Llama",
        {
            "num_hidden_layers": 2,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 32}),
    "qwen3": ("Qwen3", {}),
}
OFFLOADS = {
    "none": {},
    "uva": {"cpu_offload_gb": 1},
    "uva-copy": {"cpu_offload_gb": 1},
    "prefetch": {"offload_group_size": 4, "offload_num_in_group": 3, "offload_prefetch_step": 2},
}


def prompts():
    pick = random.Random(0)
    return [[pick.randrange(3, 512) for _ in range(n)] for n in LENGTHS]


def save_model(name, folder, **changes):
    family, own = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model.save_pretrained(folder)
    return getattr(transformers, f"{family}ForCausalLM")


def transformers_tokens(cls, folder, dtype):
    model = cls.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    answers = []
    with torch.inference_mode():
        for prompt in prompts():
            output = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones((1, len(prompt)), dtype=torch.int64),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
            answers.append(output[0, len(prompt) :].tolist())
    return answers


def engine_outputs(folder, dtype, monkeypatch):
    """Answers by (runner, offload mode)."""
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=8)
    found = {}
    for runner in ("0", "1"):
        for name, args in OFFLOADS.items():
            monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
            monkeypatch.setenv(
                "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "1" if name == "uva-copy" else "0"
            )
            with LLM(folder, dtype=dtype, **args) as llm:
                found[f"v{int(runner) + 1}-{name}"] = llm.generate(
                    prompt_token_ids=prompts(), sampling_params=params
                )
    return found


def logprob(output, position, token_id):
    """Of any token among the best eight; -inf for others."""
    best = zip(output.logprobs.top_token_ids[position], output.logprobs.top[position], strict=True)
    return dict(best).get(token_id, float("-inf"))


def first_difference(left, right):
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama3-rope", "qwen3"])
def test_greedy_tokens_equal_transformers(name, dtype, tmp_path, engine_env):
    cls = save_model(name, tmp_path)
    expected = transformers_tokens(cls, tmp_path, dtype)
    found = engine_outputs(str(tmp_path), dtype, engine_env)

    tokens = {key: [o.token_ids for o in outputs] for key, outputs in found.items()}
    assert [key for key in tokens if tokens[key] != tokens["v1-none"]] == []
    near_ties = []
    for row, output in enumerate(found["v2-none"]):
        where = first_difference(expected[row], output.token_ids)
        if where is not None:
            margin = output.logprobs.chosen[where] - logprob(output, where, expected[row][where])
            near_ties.append((row, where, margin))
    shown = "%s %s: near-ties as (prompt, position, margin in nats): %s"
    logging.getLogger(__name__).info(shown, name, dtype, near_ties)

    if dtype == "float32":
        assert near_ties == []
    assert [tie for tie in near_ties if tie[2] > NEAR_TIE_NATS] == []


def test_sliding_window_matters_to_this_workload(tmp_path, engine_env):
    save_model("mistral", tmp_path / "narrow")
    save_model("mistral", tmp_path / "wide", sliding_window=512)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    answers = []
    for folder in ("narrow", "wide"):
        with LLM(tmp_path / folder) as llm:
            outputs = llm.generate(prompt_token_ids=prompts(), sampling_params=params)
            answers.append([output.token_ids for output in outputs])

    same = [a == b for a, b in zip(*answers, strict=True)]
    assert not any(same[LENGTHS.index(64) :])
