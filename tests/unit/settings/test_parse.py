from dataclasses import replace

import pytest

from harness.core import OffloadConfig, Setting, SettingError, UsageError
from harness.settings import parse_engine_args

USUAL = Setting(instruments=("ordering", "integrity"))

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
DISABLE_PIN = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
DISABLE_UVA = "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA"
MLP = frozenset({"gate_up_proj", "down_proj"})


def test_nothing_given_is_the_default_setting():
    assert USUAL == parse_engine_args([]) == parse_engine_args([], {})
    assert Setting() == parse_engine_args([], instruments=())


@pytest.mark.parametrize(
    "args",
    [
        ["--cpu-offload-gb", "1"],
        ["--cpu-offload-gb=1"],
        ["--cpu_offload_gb", "1.0"],
        ["--cpu-offload-gb", "1", "--cpu-offload-gb=1"],
    ],
)
def test_one_value_in_every_way_it_is_written(args):
    offload = OffloadConfig(cpu_offload_gb=1.0)
    assert replace(USUAL, offload=offload) == parse_engine_args(args)


@pytest.mark.parametrize(
    "names",
    [
        ["--offload-params", "gate_up_proj", "down_proj"],
        ["--offload-params", "gate_up_proj,down_proj"],
        ["--offload-params=gate_up_proj,down_proj"],
        ["--offload-params", "gate_up_proj", "--offload-params", "down_proj"],
        ["--offload_params", "gate_up_proj", "down_proj", "gate_up_proj"],
    ],
)
def test_selectors_in_every_way_they_are_written(names):
    setting = parse_engine_args(["--offload-group-size", "8", *names, "--enforce-eager"])

    assert OffloadConfig(offload_group_size=8, offload_params=MLP) == setting.offload
    assert setting.enforce_eager


def test_every_offload_flag_reaches_its_field():
    args = (
        "--offload-backend prefetch --cpu-offload-gb 2 --cpu-offload-params mlp "
        "--offload-group-size 8 --offload-num-in-group 2 --offload-prefetch-step 3 "
        "--offload-params self_attn"
    )

    expected = OffloadConfig(
        offload_backend="prefetch",
        cpu_offload_gb=2.0,
        cpu_offload_params=frozenset({"mlp"}),
        offload_group_size=8,
        offload_num_in_group=2,
        offload_prefetch_step=3,
        offload_params=frozenset({"self_attn"}),
    )
    assert expected == parse_engine_args(args.split()).offload


def test_engine_flags_are_read_by_their_types():
    args = (
        "--dtype bfloat16 --max-model-len 1K --max-num-seqs 4 --max-num-batched-tokens 2k "
        "--load-format dummy --seed 0 --device simulated --device-memory-bytes 1M "
        "--kv-cache-memory-bytes 4096 --block-size 16 --schedule copy_late --schedule-seed 7"
    )

    expected = {
        "dtype": "bfloat16", "max_model_len": 1024, "max_num_seqs": 4,
        "max_num_batched_tokens": 2000, "load_format": "dummy", "seed": 0, "device": "simulated",
        "device_memory_bytes": 1024**2, "kv_cache_memory_bytes": 4096, "block_size": 16,
        "schedule": "copy_late", "schedule_seed": 7,
    }  # fmt: skip
    assert expected == parse_engine_args(args.split()).engine_args


def test_no_enforce_eager_asks_for_graphs():
    assert not parse_engine_args(["--no-enforce-eager"]).enforce_eager


def test_vllm_without_enforce_eager_asks_for_graphs_as_vllm_does():
    assert not parse_engine_args([], engine="vllm").enforce_eager
    assert parse_engine_args(["--enforce-eager"], engine="vllm").enforce_eager


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--cpu-offload-bg", "1"], "Unknown flag --cpu-offload-bg for engine 'reference'. "
                                    "Did you mean --cpu-offload-gb?"),
        (["--zzz"], "Unknown flag --zzz for engine 'reference'. Known: offload_backend, "),
        (["--no-seed"], "Unknown flag --no-seed"),
        (["-O3"], "Unexpected engine argument '-O3': flags start with two dashes"),
        (["--"], "Unexpected engine argument '--'"),
        (["tiny-llama"], "Unexpected engine argument 'tiny-llama': it follows no flag"),
        (["--seed"], "--seed takes one value, found none"),
        (["--seed", "1", "2"], "--seed takes one value, found 2: 1 2"),
        (["--seed", "x"], "--seed='x' must be a whole number"),
        (["--seed", "1.5"], "--seed='1.5' must be a whole number"),
        (["--max-model-len", "k"], "--max-model-len='k' must be a whole number"),
        (["--cpu-offload-gb", "1x"], "--cpu-offload-gb='1x' must be a number"),
        (["--cpu-offload-gb", "nan"], "--cpu-offload-gb='nan' must be a finite number"),
        (["--cpu-offload-gb", "inf"], "--cpu-offload-gb='inf' must be a finite number"),
        (["--enforce-eager", "true"], "--enforce-eager takes no value, found 'true'; its opposite "
                                      "is --no-enforce-eager"),
        (["--no-enforce-eager=1"], "--no-enforce-eager takes no value"),
        (["--enforce-eager", "--no-enforce-eager"], "contradict each other"),
        (["--seed", "1", "--seed", "2"], "'--seed 1' and '--seed 2' contradict each other"),
        (["--offload-params"], "--offload-params needs names separated by spaces or commas"),
        (["--offload-params", "a,,b"], "--offload-params needs names"),
        (["--offload-backend", "disk"], "--offload-backend='disk' must be one of auto, uva, "),
        (["--dtype", "int8"], "--dtype='int8' must be one of auto, float32"),
        (["--gpu-memory-utilization", "0.5"], "give --kv-cache-memory-bytes"),
        ([1], "engine argument 1 must be a string"),
        ("--seed 1", "must be a list of strings"),
    ],
)  # fmt: skip
def test_argument_that_cannot_be_read_is_refused_in_one_line(args, text):
    with pytest.raises(UsageError) as caught:
        parse_engine_args(args)

    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["--offload-group-size", "2", "--offload-num-in-group=3"],
            "offload_num_in_group=3 must be <= offload_group_size=2 "
            "(from --offload-group-size 2, --offload-num-in-group=3)",
        ),
        (
            ["--cpu-offload-gb", "-1"],
            "cpu_offload_gb=-1.0 must be >= 0 (GiB) (from --cpu-offload-gb -1)",
        ),
        (
            ["--offload-backend", "prefetch"],
            "offload_backend='prefetch' needs offload_group_size > 0 "
            "(from --offload-backend prefetch, --offload-group-size not given)",
        ),
    ],
)
def test_range_error_says_where_the_values_were_given(args, text):
    with pytest.raises(SettingError) as caught:
        parse_engine_args(args)

    assert text == str(caught.value)


def test_vllm_gets_flags_only_it_knows_by_keyword():
    args = [
        "--tensor-parallel-size", "2", "--trust-remote-code", "--no-enable-prefix-caching",
        "--dtype", "half", "--gpu-memory-utilization=0.02", "--tokenizer", "some/name",
        "--middleware", "a", "b", "--compilation-config", '{"level": 3}', "--limit", "NaN",
    ]  # fmt: skip

    expected = {
        "tensor_parallel_size": 2, "trust_remote_code": True, "enable_prefix_caching": False,
        "dtype": "half", "gpu_memory_utilization": 0.02, "tokenizer": "some/name",
        "middleware": ["a", "b"], "compilation_config": {"level": 3}, "limit": "NaN",
    }  # fmt: skip
    assert expected == parse_engine_args(args, engine="vllm").engine_args


def test_vllm_offload_flags_are_still_checked():
    with pytest.raises(UsageError, match="must be one of auto, uva, prefetch"):
        parse_engine_args(["--offload-backend", "x"], engine="vllm")


@pytest.mark.parametrize(("value", "runner"), [(None, None), ("0", "v1"), ("1", "v2")])
def test_runner_variable_becomes_the_runner(value, runner):
    setting = parse_engine_args([], {RUNNER: value})

    assert runner == setting.runner
    assert {} == setting.env


def test_off_switches_and_multiprocessing_become_fields():
    env = {DISABLE_PIN: "1", DISABLE_UVA: "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}

    setting = parse_engine_args(["--cpu-offload-gb", "1"], env)

    assert OffloadConfig(cpu_offload_gb=1.0, pin_memory=False, uva=False) == setting.offload
    assert setting.multiprocessing


@pytest.mark.parametrize("value", ["0", None])
def test_off_switch_that_is_off_or_unset_leaves_the_default(value):
    assert USUAL == parse_engine_args([], {DISABLE_PIN: value, DISABLE_UVA: value})


def test_other_variables_stay_in_env_and_the_callers_dict_is_untouched():
    env = {RUNNER: "1", "A": "x", "B": None}

    assert {"A": "x", "B": None} == parse_engine_args([], env).env
    assert {RUNNER: "1", "A": "x", "B": None} == env


@pytest.mark.parametrize("name", [RUNNER, DISABLE_PIN, DISABLE_UVA])
@pytest.mark.parametrize("value", ["2", "", "true", "v2", 1, True])
def test_switch_other_than_0_or_1_is_refused(name, value):
    with pytest.raises(SettingError, match=f"env {name}=.* must be '0' or '1'"):
        parse_engine_args([], {name: value})


@pytest.mark.parametrize("env", [{"A": 1}, {"": "x"}, {"A=B": "x"}])
def test_variable_no_process_can_have_is_refused(env):
    with pytest.raises(SettingError, match="env "):
        parse_engine_args([], env)


def test_forced_runner_cannot_be_undone_by_the_environment():
    with pytest.raises(SettingError) as caught:
        parse_engine_args([], {RUNNER: "1"}, force_runner="v1")

    assert "asks for runner v2, but runner v1 is forced" in str(caught.value)


@pytest.mark.parametrize("env", [{}, {RUNNER: None}, {RUNNER: "0"}])
def test_forced_runner_agrees_with_an_environment_that_says_the_same_or_nothing(env):
    assert "v1" == parse_engine_args([], env, force_runner="v1").runner


def test_forced_runner_must_be_known():
    with pytest.raises(SettingError, match="force_runner='v3' must be 'v1' or 'v2'"):
        parse_engine_args([], force_runner="v3")


@pytest.mark.parametrize("text", ["cpu", '["cpu"]', '{"": 0}', ""])
def test_a_device_map_is_a_json_object_of_texts(text):
    args = ["--offload-backend", "device_map", "--device-map", text]

    with pytest.raises(UsageError, match=r"--device-map=.* must be a JSON object of texts"):
        parse_engine_args(args, engine="accelerate")


@pytest.mark.parametrize(
    ("engine", "is_eager"), [("vllm", False), ("vllm-cpu-emulation", False), ("accelerate", True)]
)
def test_graphs_are_asked_for_where_the_engine_has_them_by_default(engine, is_eager):
    assert is_eager is parse_engine_args([], engine=engine).enforce_eager
