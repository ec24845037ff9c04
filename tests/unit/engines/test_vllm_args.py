import json
from dataclasses import replace

import pytest

from harness.core import OffloadConfig, Setting, decode
from harness.engines.vllm import args
from tests.builders import build_workload

VLLM = Setting(engine="vllm", runner="v2")


def kwargs_of(setting=VLLM, *, is_cpu=True, limit=None, prompts=None, max_tokens=4):
    config = {} if limit is None else {"max_position_embeddings": limit}
    work = build_workload(config=config, path="/models/toy", dtype="float32")
    work = replace(
        work,
        prompt_token_ids=prompts or work.prompt_token_ids,
        sampling_params=replace(work.sampling_params, max_tokens=max_tokens),
    )
    return args.engine_kwargs(setting, work, is_cpu=is_cpu)


def test_the_model_is_named_and_nothing_is_tokenized():
    kwargs = kwargs_of()

    assert ("/models/toy", "float32") == (kwargs["model"], kwargs["dtype"])
    assert kwargs["skip_tokenizer_init"] is True
    assert args.EXTENSION == kwargs["worker_extension_cls"]


@pytest.mark.parametrize(
    ("longest", "max_tokens", "limit", "expected"),
    [(3, 4, None, 7), (3, 4, 4096, 64), (60, 4, 4096, 64), (61, 4, 4096, 128)],
)
def test_the_length_is_what_is_needed_rounded_up(longest, max_tokens, limit, expected):
    kwargs = kwargs_of(limit=limit, prompts=((1,) * longest, (1,)), max_tokens=max_tokens)

    assert expected == kwargs["max_model_len"]


def test_the_length_is_not_rounded_beyond_what_the_model_has():
    assert 67 == kwargs_of(limit=100, prompts=((1,) * 63,))["max_model_len"]


@pytest.mark.parametrize(("num", "expected"), [(1, 8), (8, 8), (9, 9)])
def test_all_prompts_fit_in_one_batch(num, expected):
    assert expected == kwargs_of(prompts=((1, 2),) * num)["max_num_seqs"]


def test_the_cache_has_a_fixed_size_so_that_no_launch_measures_another():
    cpu, cuda = kwargs_of(is_cpu=True), kwargs_of(is_cpu=False)

    assert args.CPU_CACHE_BYTES == cpu["kv_cache_memory_bytes"]
    assert args.CUDA_CACHE_BYTES == cuda["kv_cache_memory_bytes"]
    assert "gpu_memory_utilization" not in cpu
    assert args.CUDA_SHARE == cuda["gpu_memory_utilization"]


def test_what_the_setting_says_wins():
    offload = OffloadConfig(cpu_offload_gb=0.5, cpu_offload_params=frozenset({"b", "a"}))
    given = {"max_model_len": 9, "max_num_seqs": 1, "seed": 7, "dtype": "bfloat16"}
    kwargs = kwargs_of(replace(VLLM, offload=offload, engine_args=given))

    assert given.items() <= kwargs.items()
    assert (0.5, ["a", "b"]) == (kwargs["cpu_offload_gb"], kwargs["cpu_offload_params"])
    assert kwargs["enforce_eager"] is True


def test_switches_that_are_variables_are_no_arguments():
    off = replace(VLLM, offload=OffloadConfig(cpu_offload_gb=1, pin_memory=False, uva=False))

    assert not {"pin_memory", "uva"} & set(kwargs_of(off))


def test_every_process_of_the_engine_finds_the_whole_setting():
    setting = replace(VLLM, release="0.28.0", instruments=("ordering",), faults=("x",))
    env = args.process_env(setting, is_cpu=True)

    assert setting == decode(Setting, json.loads(env[args.ENV_SETTING]))
    assert args.ENV_DEFAULTS.items() <= env.items()


def test_a_variable_of_the_setting_is_not_overridden():
    env = args.process_env(replace(VLLM, env={"HF_HUB_OFFLINE": "0"}), is_cpu=True)

    assert "HF_HUB_OFFLINE" not in env
    assert "1" == env["VLLM_NO_USAGE_STATS"]
