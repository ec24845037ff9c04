"""The printed command asks for the very settings that were compared."""

import shlex
from dataclasses import replace

import pytest

from harness.cli.compare import split_side
from harness.rerun import compare_command, side_text
from harness.settings import parse_engine_args
from tests.builders import UVA, build_case

SIDES = [
    ([], {}),
    (["--cpu-offload-gb", "0.003"], {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    (
        ["--offload-group-size", "8", "--offload-params", "gate_up_proj", "down_proj"],
        {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1", "HARNESS_X": "a b"},
    ),
    (["--seed", "3", "--no-enforce-eager"], {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
]


REAL = [
    ("vllm", ["--enforce-eager", "--cpu-offload-gb", "1"], {}),
    ("vllm", ["--offload-group-size", "2", "--offload-params", "down_proj"], {"A": "1"}),
    (
        "vllm-cpu-emulation",
        ["--compilation-config", '{"mode": 0}', "--no-enable-prefix-caching", "--seed", "3",
         "--load-format", "dummy", "--served-model-name", "a", "b", "--quantization", '"8"',
         "--gpu-memory-utilization", "0.123456789", "--trust-remote-code"],
        {},
    ),
    ("accelerate", ["--offload-backend", "disk_offload"], {}),
    ("accelerate", ["--offload-backend", "device_map", "--device-map", '{"": "disk"}'], {}),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "args", "env"), REAL)
def test_a_side_of_a_real_engine_reads_back_as_the_same_setting(engine, args, env):
    setting = parse_engine_args(args, env, engine=engine)

    words, variables = split_side(side_text(setting))

    assert setting == parse_engine_args(words, variables, engine=engine)


def test_the_command_names_engine_and_interpreter():
    case = build_case(UVA)
    sides = {
        name: replace(getattr(case, name), engine="vllm", release="0.28", python="/p")
        for name in ("baseline", "target")
    }

    words = shlex.split(compare_command(replace(case, **sides)))

    assert ["--engine", "vllm", "--python", "0.28=/p"] == words[3:7]
    assert "--engine" not in compare_command(case)


@pytest.mark.parametrize(("args", "env"), SIDES)
def test_a_side_reads_back_as_the_same_setting(args, env):
    setting = parse_engine_args(args, env)

    words, variables = split_side(side_text(setting))

    assert setting == parse_engine_args(words, variables)
    assert shlex.split(side_text(setting))[: len(variables)] == [
        f"{name}={value}" for name, value in sorted(variables.items())
    ]
