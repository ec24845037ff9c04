"""Greedy tokens of every model of models.yaml against transformers' own model, same checkpoint.

float32: every token equal. bfloat16: equal up to the first near-tie, whose margin is shown (-rP),
and over all tokens as close to float32 as transformers' bfloat16 is.
Between runners and offload modes: every token equal, in both dtypes.
"""

from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from harness.core import encode
from harness.refengine import LLM, SamplingParams, envs
from harness.refengine.offloader import get_offloader
from harness.settings import list_models, load_model, load_workload

MOST_NEAR_TIE_NATS = 0.75
"""bfloat16: ceiling of the near-tie limit, which is measured for each model (0.1 to 0.5)."""
ROUNDING_EXCESS = 1.1
"""bfloat16: the engine's RMS error against float32, over transformers'; 0.99 to 1.02 is usual."""

MODELS = [entry.name for entry in list_models() if entry.source != "hub"]
"""Hub models resolve to one of these, as a stand-in, where they are not on the machine."""

PIN_OFF = {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1"}
UVA_OFF = {"VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": "1"}
UVA = {"cpu_offload_gb": 1}
# ends inside the stack: two layers of these in float32, four in bfloat16
MLPS = ["gate_up_proj", "down_proj", "w13", "w2"]
PARTIAL = {"cpu_offload_gb": 0.001, "cpu_offload_params": MLPS}
RING = {"offload_group_size": 1, "offload_num_in_group": 1}
MODES = {
    "none": ("NoopOffloader", {}, {}),
    "uva": ("UVAOffloader", UVA, {}),
    "uva-unpinned": ("UVAOffloader", UVA, PIN_OFF),
    "uva-partial": ("UVAOffloader", PARTIAL, {}),
    "uva-copy": ("UVAOffloader", UVA, UVA_OFF),
    "prefetch-g1n1s1": ("PrefetchOffloader", RING | {"offload_prefetch_step": 1}, PIN_OFF),
    # 8 or 16 modules over 3 slots, which 3 does not divide
    "prefetch-g1n1s3": ("PrefetchOffloader", RING | {"offload_prefetch_step": 3}, {}),
}
HARD = ("seeded-llama-int8", "seeded-lfm2", "seeded-llama-tower")
FEWER = ("uva-unpinned", "prefetch-g1n1s1")
"""Modes that models of other layers are not tried in here: only where bytes are differs."""
RUNNERS = {"v1": "0", "v2": "1"}


@pytest.fixture
def engine_env(monkeypatch):
    """Only what a test sets: the core in process, one thread, no way to the hub."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in envs.DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield monkeypatch
    torch.set_num_threads(before)


def oracle_workload(name, dtype):
    """8 prompts of 1 to 256 tokens, and 64 new tokens of each even after an end of sequence."""
    workload = load_workload("oracle", load_model(name, dtype=dtype))
    params = replace(workload.sampling_params, ignore_eos=True)
    lengths = [len(prompt) for prompt in workload.prompt_token_ids]
    assert (len(lengths), min(lengths), max(lengths), params.max_tokens) == (8, 1, 256, 64)
    return replace(workload, sampling_params=params)


def load_transformers(spec):
    name = spec.architecture.removeprefix("PromptTower")
    dtype = getattr(torch, spec.dtype)
    if name == spec.architecture:
        cls = getattr(transformers, name)
        model = cls.from_pretrained(spec.path, dtype=dtype, local_files_only=True).eval()
    else:
        model = load_with_tower(spec, getattr(transformers, name), dtype)
    model.generation_config.eos_token_id = None
    return model


def load_with_tower(spec, cls, dtype):
    """The decoder with its tower as `prompt_tower`, made of transformers' own norm and MLP."""
    tensors = load_file(f"{spec.path}/model.safetensors")
    config = transformers.LlamaConfig.from_pretrained(spec.path)
    model = cls(config)
    model.prompt_tower = torch.nn.ModuleList(
        torch.nn.ModuleDict(
            {"mlp": LlamaMLP(config), "norm": LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)}
        )
        for _ in range(spec.config["num_tower_layers"])
    )
    model.load_state_dict({n.replace("tower.layers.", "tower."): t for n, t in tensors.items()})
    return model.to(dtype).eval()


def embed(model, ids, num_prompt):
    """Embeddings (prompts, tokens, hidden); the first `num_prompt` tokens went through a tower."""
    hidden = model.get_input_embeddings()(ids)
    prompt = hidden[:, :num_prompt]
    for layer in getattr(model, "prompt_tower", ()):
        prompt = prompt + layer["mlp"](layer["norm"](prompt))
    return torch.cat((prompt, hidden[:, num_prompt:]), dim=1)


def transformers_answers(model, workload):
    """By prompt: token ids, and the log-probabilities (tokens, vocabulary) they are chosen from.

    One batch, padded on the left: a slip in that could break the test, not let a defect pass.
    """
    prompts = [torch.tensor(prompt) for prompt in workload.prompt_token_ids]
    pad = {"batch_first": True, "padding_side": "left"}
    ids = torch.nn.utils.rnn.pad_sequence(prompts, padding_value=0, **pad)
    with torch.inference_mode():
        inputs = embed(model, ids, ids.shape[1])
    has_tower = hasattr(model, "prompt_tower")
    output = model.generate(
        **({"inputs_embeds": inputs} if has_tower else {"inputs": ids}),
        attention_mask=torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(p) for p in prompts], **pad
        ),
        max_new_tokens=workload.sampling_params.max_tokens,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = output.sequences[:, -workload.sampling_params.max_tokens :].tolist()
    logprobs = torch.stack(output.logits, dim=1).float().log_softmax(-1)
    return list(zip(tokens, logprobs, strict=True))


def engine_answers(workload, runner, mode, monkeypatch):
    """What one engine answers, and the bytes that its offloader, which is checked, holds."""
    offloader, args, env = MODES[mode]
    spec = workload.model
    with monkeypatch.context() as patch:
        for name, value in {"VLLM_USE_V2_MODEL_RUNNER": RUNNERS[runner], **env}.items():
            patch.setenv(name, value)
        with LLM(spec.path, dtype=spec.dtype, max_num_seqs=8, **args) as llm:
            core = llm.llm_engine.engine_core.engine_core
            engine_runner = core.model_executor.driver_worker.worker.model_runner
            assert type(engine_runner).__module__.split(".")[-1] == runner
            engaged = get_offloader()
            assert type(engaged).__name__ == offloader
            assert mode == "none" or engaged.pin_memory == (not env.keys() & PIN_OFF.keys())
            held = getattr(engaged, "cpu_offload_bytes", 0)
            return llm.generate(
                prompt_token_ids=workload.prompt_token_ids,
                sampling_params=SamplingParams(**encode(workload.sampling_params)),
            ), held or getattr(engaged, "total_offloaded_bytes", 0)


def first_difference(left, right):
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)


def find_differences(answers, expected):
    """(prompt, position, our token, its token, our margin, its margin in nats), by prompt."""
    found = []
    for row, (answer, (tokens, logprobs)) in enumerate(zip(answers, expected, strict=True)):
        at = first_difference(answer.token_ids, tokens)
        if at is not None:
            top = answer.logprobs
            best = dict(zip(top.top_token_ids[at], top.top[at], strict=True))
            ours, theirs = answer.token_ids[at], tokens[at]
            margin = best[ours] - best.get(theirs, float("-inf"))
            other = float(logprobs[at, theirs] - logprobs[at, ours])
            found.append((row, at, ours, theirs, margin, other))
    return found


def read_logprobs(model, answers):
    """(answered tokens, vocabulary): each prompt with the engine's answer is one forward."""
    rows = []
    for answer in answers:
        ids = torch.tensor([answer.prompt_token_ids + answer.token_ids[:-1]])
        with torch.inference_mode():
            embedded = embed(model, ids, len(answer.prompt_token_ids))
            logits = model(inputs_embeds=embedded).logits[0, len(answer.prompt_token_ids) - 1 :]
        rows.append(logits.float().log_softmax(-1))
    return torch.stack(rows)


def in_float32(model):
    """The same weights in float32; those that were packed as `model` has unpacked them."""
    if not getattr(model, "is_quantized", False):
        return model.float()
    config = type(model.config)(**model.config.to_dict())
    del config.quantization_config
    plain = type(model)(config).float().eval()
    plain.load_state_dict({n: v for n, v in model.state_dict().items() if n in plain.state_dict()})
    return plain


def rms(errors):
    return float(errors.square().mean().sqrt())


def check_rounding(model, answers, differences, record_property, label):
    """Every difference is a near-tie, and the engine rounds as `model` does, over all tokens.

    The truth is the same weights in float32 (`model` may be turned into it). It says how far apart
    the two tokens of a difference really are; the limit is the most that transformers' own rounding
    moves the distance between the best two tokens, anywhere in these answers.
    """
    rounded = read_logprobs(model, answers)
    exact = read_logprobs(in_float32(model), answers)
    top_ids = torch.tensor([answer.logprobs.top_token_ids for answer in answers])
    truth, theirs = exact.gather(-1, top_ids), rounded.gather(-1, top_ids)
    ours = torch.tensor([answer.logprobs.top for answer in answers])
    moved = (theirs[..., 0] - theirs[..., 1]) - (truth[..., 0] - truth[..., 1])
    limit = float(moved.abs().max())
    ties = []
    for row, at, our_token, their_token, our_margin, their_margin in differences:
        apart = abs(float(exact[row, at, our_token] - exact[row, at, their_token]))
        ties.append((row, at, our_margin, their_margin, apart))
    lines = [
        f"{label} near-tie: prompt {row} token {at}: margin of the engine {a:.3f}, "
        f"of transformers {b:.3f}, in float32 {c:.3f} nats"
        for row, at, a, b, c in ties
    ]
    errors = rms(ours - truth), rms(theirs - truth)
    lines.append(
        f"{label} near-tie limit {limit:.3f} nats; RMS rounding error: "
        f"engine {errors[0]:.4f}, transformers {errors[1]:.4f} nats"
    )
    print("\n".join(lines))  # noqa: T201 - the margins are to be seen
    record_property("near_ties", ties)
    record_property("rounding_rms", errors)

    assert limit < MOST_NEAR_TIE_NATS
    assert [tie for tie in ties if tie[4] > limit] == []
    assert errors[0] <= ROUNDING_EXCESS * errors[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_transformers(name, dtype, engine_env, record_property):
    workload = oracle_workload(name, dtype)
    tokens, held = {}, {}
    for mode in [m for m in MODES if name not in HARD or m not in FEWER]:
        for runner in RUNNERS:
            answers, held[mode] = engine_answers(workload, runner, mode, engine_env)
            tokens[runner, mode] = [answer.token_ids for answer in answers]
            if mode == "none" and runner == "v1":
                first = answers
    assert [key for key, ids in tokens.items() if ids != tokens["v1", "none"]] == []
    assert 0 == held["none"] < held["uva-partial"] < held["uva"]

    model = load_transformers(workload.model)
    tower = sum(p.nbytes for n, p in model.named_parameters() if n.startswith("prompt_tower."))
    assert held["uva"] == held["prefetch-g1n1s3"] + tower  # which no ring takes
    differences = find_differences(first, transformers_answers(model, workload))
    if dtype == "float32":
        assert differences == []
    else:
        check_rounding(model, first, differences, record_property, f"{name} {dtype}")
