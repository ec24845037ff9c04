import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from harness.refengine import (
    LLM,
    ConfigError,
    OutOfDeviceMemoryError,
    SamplingParams,
    UnsupportedSettingError,
    envs,
)
from harness.refengine.loader import FUSED
from harness.refengine.offloader import NoopOffloader, get_offloader

GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)


class Extension:
    """Mixed into the Worker by name."""

    def add(self, a, b=0):
        return a + b

    def runner_name(self):
        return type(self.model_runner).__module__


class Clash:
    """Redefines something of the Worker."""

    def shutdown(self):
        return None


def worker_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def names_of(llm):
    return [name for name, _ in worker_of(llm).model_runner.model.named_parameters()]


def save_checkpoint(folder, llm, change=None):
    """Write the engine's own weights, unfused, as a checkpoint has them."""
    parts = {"qkv_proj": [32, 16, 16], "gate_up_proj": [64, 64]}
    tensors = {}
    for name, param in worker_of(llm).model_runner.model.named_parameters():
        segment = name.split(".")[-2]
        sources = [k for k, (fused, _) in FUSED.items() if fused == segment]
        if sources:
            pieces = param.data.split(parts[segment])
            tensors |= {
                name.replace(segment, k): v.clone() for k, v in zip(sources, pieces, strict=True)
            }
        else:
            tensors[name] = param.data.clone()
    if change:
        change(tensors)
    save_file(tensors, Path(folder) / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "extra", "tail"),
    [
        ({}, [], ["model.norm.weight", "lm_head.weight"]),
        ({"tie_word_embeddings": True}, [], ["model.norm.weight"]),
        (
            {"architectures": ["Qwen3ForCausalLM"]},
            ["self_attn.q_norm.weight", "self_attn.k_norm.weight"],
            ["model.norm.weight", "lm_head.weight"],
        ),
    ],
)
def test_parameters_have_vllms_names_in_vllms_order(
    make_llm, make_checkpoint, changes, extra, tail
):
    layer = [
        "self_attn.qkv_proj.weight",
        "self_attn.o_proj.weight",
        *extra,
        "mlp.gate_up_proj.weight",
        "mlp.down_proj.weight",
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ]
    expected = ["model.embed_tokens.weight"]
    expected += [f"model.layers.{i}.{name}" for i in range(2) for name in layer]

    llm = make_llm(make_checkpoint(num_hidden_layers=2, **changes))
    assert [*expected, *tail] == names_of(llm)


def test_checkpoint_gives_the_weights_it_holds(make_llm, make_checkpoint):
    folder = make_checkpoint()
    dummy = make_llm(folder)
    save_checkpoint(folder, dummy)
    loaded = make_llm(folder, load_format="auto", offload_group_size=2, cpu_offload_params=[])

    args = {"prompt_token_ids": [[5, 6, 7]], "sampling_params": GREEDY}
    assert dummy.generate(**args)[0].token_ids == loaded.generate(**args)[0].token_ids


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"), "qkv_proj.weight' is not fill"),
        (lambda t: t.update(surprise=torch.zeros(1)), "'surprise' in .* belongs to no parameter"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(3, 32)}), r"has shape \[3, 32\]"),
    ],
)
def test_checkpoint_that_does_not_fit_the_model_is_refused(make_llm, make_checkpoint, change, text):
    folder = make_checkpoint()
    save_checkpoint(folder, make_llm(folder), change)

    with pytest.raises(ConfigError, match=text):
        make_llm(folder, load_format="safetensors")


def test_checkpoint_without_weights_is_refused(make_llm):
    with pytest.raises(ConfigError, match=r"has no \*\.safetensors"):
        make_llm(load_format="auto")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture='GPT2LMHeadModel' must be one of"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn'"),
    ],
)
def test_model_the_engine_cannot_compute_is_refused(make_llm, make_checkpoint, changes, text):
    with pytest.raises(UnsupportedSettingError, match=text):
        make_llm(make_checkpoint(**changes))


def test_dummy_weights_depend_on_the_seed(make_llm, make_checkpoint):
    folder = make_checkpoint()
    sums = [
        worker_of(make_llm(folder, seed=seed)).model_runner.model.lm_head.weight.sum().item()
        for seed in (0, 0, 1)
    ]

    assert sums[0] == sums[1] != sums[2]


@pytest.mark.parametrize("runner", ["0", "1"])
@pytest.mark.parametrize(
    "offload",
    [{}, {"cpu_offload_gb": 1}, {"offload_group_size": 2, "offload_prefetch_step": 2}],
)
def test_shutdown_returns_every_byte(make_llm, engine_env, runner, offload):
    engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    llm = make_llm(**offload)
    llm.generate(prompt_token_ids=[[3, 4, 5], [6]], sampling_params=GREEDY)
    worker, offloader = worker_of(llm), get_offloader()
    assert worker.memory_stats()["device"]["current"] > 0

    llm.shutdown()
    assert offloader is not get_offloader()  # a probe that still holds it holds no bytes

    stats = worker.memory_stats()
    assert [stats[space]["current"] for space in ("device", "pinned", "host")] == [0, 0, 0]
    assert isinstance(get_offloader(), NoopOffloader)
    assert not envs.is_envs_cache_enabled()


@pytest.mark.parametrize(
    "offload",
    [
        {"cpu_offload_gb": 1},
        {"offload_group_size": 4, "offload_num_in_group": 3, "offload_prefetch_step": 1},
    ],
)
def test_model_that_does_not_fit_the_device_fits_with_offload(make_llm, make_checkpoint, offload):
    folder = make_checkpoint(num_hidden_layers=8)
    args = {"kv_cache_memory_bytes": 64 * 1024, "max_num_seqs": 2, "max_model_len": 32}
    roomy = make_llm(folder, **args)
    stats = worker_of(roomy).memory_stats()["device"]
    weights = stats["by_kind"]["weights"]
    capacity = stats["peak"] - weights // 4
    prompt = {"prompt_token_ids": [[7, 8, 9]], "sampling_params": GREEDY}
    expected = roomy.generate(**prompt)[0].token_ids
    roomy.shutdown()

    with pytest.raises(OutOfDeviceMemoryError):
        make_llm(folder, device_memory_bytes=capacity, **args)
    small = make_llm(folder, device_memory_bytes=capacity, **args, **offload)
    assert expected == small.generate(**prompt)[0].token_ids
    assert worker_of(small).memory_stats()["device"]["peak"] <= capacity


def test_failed_start_leaves_nothing_behind(make_llm, make_checkpoint):
    with pytest.raises(OutOfDeviceMemoryError):
        make_llm(device_memory_bytes=50_000, cpu_offload_gb=1)

    assert isinstance(get_offloader(), NoopOffloader)
    assert not envs.is_envs_cache_enabled()


def test_answers_come_in_the_order_of_the_prompts(make_llm):
    llm = make_llm(max_num_seqs=2)
    pick = random.Random(3)
    prompts = [[pick.randrange(3, 128) for _ in range(n)] for n in (20, 1, 9, 4, 2)]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 7, 3, 9, 2)]
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params)

    assert prompts == [output.prompt_token_ids for output in outputs]
    assert [len(output.token_ids) for output in outputs] == [1, 7, 3, 9, 2]
    assert {"length"} == {output.finish_reason for output in outputs}


def test_logprobs_are_of_the_tokens_returned(make_llm):
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=3)
    (output,) = make_llm().generate(prompt_token_ids=[[5, 6]], sampling_params=params)

    assert output.token_ids == [row[0] for row in output.logprobs.top_token_ids]
    assert output.logprobs.chosen == [row[0] for row in output.logprobs.top]
    assert all(len(row) == 3 and row == sorted(row, reverse=True) for row in output.logprobs.top)


def test_prompts_may_be_mappings_with_known_keys_only(make_llm):
    llm = make_llm()
    by_ids = llm.generate(prompt_token_ids=[[5, 6]], sampling_params=GREEDY)
    by_mapping = llm.generate({"prompt_token_ids": [5, 6]}, GREEDY)

    assert by_ids[0].token_ids == by_mapping[0].token_ids
    with pytest.raises(ConfigError, match="Did you mean 'prompt_token_ids'"):
        llm.generate({"prompt_tokens_ids": [5, 6]}, GREEDY)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, "give either prompts or prompt_token_ids"),
        ({"prompts": "text"}, r"needs .*tokenizer\.json"),
        ({"prompt_token_ids": [[128]]}, r"must be in 0\.\.127"),
        ({"prompt_token_ids": [[]]}, "empty prompt"),
        ({"prompt_token_ids": [[5] * 200]}, "has 200 prompt tokens"),
        ({"prompt_token_ids": [[5]], "sampling_params": []}, "0 sampling_params for 1 prompts"),
    ],
)
def test_impossible_prompt_is_refused_and_the_engine_lives_on(make_llm, args, text):
    llm = make_llm()

    with pytest.raises(ConfigError, match=text):
        llm.generate(**args)
    assert len(llm.generate(prompt_token_ids=[[5]], sampling_params=GREEDY)[0].token_ids) == 6


def test_text_goes_in_and_out_where_there_is_a_tokenizer(make_llm, make_checkpoint):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder = make_checkpoint()
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(Path(folder) / "tokenizer.json"))
    (output,) = make_llm(folder).generate("w5 w9", GREEDY)

    assert output.prompt_token_ids == [5, 9]
    assert " ".join(f"w{i}" for i in output.token_ids) == output.text


def test_both_backends_warn_and_prefetch_wins(make_llm, caplog):
    llm = make_llm(cpu_offload_gb=1, offload_group_size=2)

    assert [type(get_offloader()).__name__] == ["PrefetchOffloader"]
    assert llm.warnings == [
        "cpu_offload_gb=1 is ignored: the offload backend in effect is prefetch"
    ]
    assert llm.warnings == llm.collective_rpc("get_warnings")[0]
    assert llm.warnings == [record.getMessage() for record in caplog.records]


def test_extension_is_mixed_into_the_worker(make_llm):
    llm = make_llm(worker_extension_cls=f"{__name__}.Extension")

    assert llm.collective_rpc("add", (2,), {"b": 3}) == [5]
    assert llm.collective_rpc("runner_name") == ["harness.refengine.runner.v2"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Extension", "must be module.Class"),
        (f"{__name__}.Missing", "has no class Missing"),
        (f"{__name__}.Clash", "redefines shutdown of the Worker"),
    ],
)
def test_extension_that_cannot_be_mixed_in_is_refused(make_llm, name, text):
    with pytest.raises(ConfigError, match=text):
        make_llm(worker_extension_cls=name)


def test_unknown_worker_method_is_named(make_llm):
    with pytest.raises(ConfigError, match="method='ad' is not a method of Worker"):
        make_llm().collective_rpc("ad")


def test_shutdown_twice_is_once(make_llm):
    llm = make_llm()
    llm.shutdown()
    llm.shutdown()


def test_environment_is_frozen_while_an_engine_lives(make_llm, engine_env):
    llm = make_llm()
    engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")

    assert envs.VLLM_USE_V2_MODEL_RUNNER is None
    llm.shutdown()
    assert envs.VLLM_USE_V2_MODEL_RUNNER is False


def test_unknown_engine_argument_is_refused(make_checkpoint):
    with pytest.raises(ConfigError, match="Did you mean 'max_num_seqs'"):
        LLM(make_checkpoint(), max_num_seq=2)
