"""The printed command asks for the very settings that were compared."""

import shlex

import pytest

from harness.cli.compare import split_side
from harness.rerun import side_text
from harness.settings import parse_engine_args

SIDES = [
    ([], {}),
    (["--cpu-offload-gb", "0.003"], {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    (
        ["--offload-group-size", "8", "--offload-params", "gate_up_proj", "down_proj"],
        {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1", "HARNESS_X": "a b"},
    ),
    (["--seed", "3", "--no-enforce-eager"], {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
]


@pytest.mark.parametrize(("args", "env"), SIDES)
def test_a_side_reads_back_as_the_same_setting(args, env):
    setting = parse_engine_args(args, env)

    words, variables = split_side(side_text(setting))

    assert setting == parse_engine_args(words, variables)
    assert shlex.split(side_text(setting))[: len(variables)] == [
        f"{name}={value}" for name, value in sorted(variables.items())
    ]
