"""Secrets are masked by name in environments, arguments, text and JSON; everything else stays."""

import pytest

from harness.record import redact_argv, redact_env, redact_json, redact_text
from harness.record.redact import is_secret_name


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hf_token",
        "--api-key",
        "AWS_SECRET_ACCESS_KEY",
        "CLIENT_SECRET",
        "PGPASSWORD",
        "DB_PASSWORD",
        "OPENAI_APIKEY",
        "MY_SECRET_NAME",
    ],
)
def test_secret_names_are_told(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "token_ids",
        "prompt_token_ids",
        "eos_token_id",
        "token_idx",
        "max_num_batched_tokens",
        "--max-num-batched-tokens",
        "max_tokens",
        "tokenizer",
        "TOKENIZERS_PARALLELISM",
        "keyword",
        "cpu_offload_gb",
        "VLLM_USE_V2_MODEL_RUNNER",
    ],
)
def test_ordinary_names_are_left_alone(name):
    assert not is_secret_name(name)


def test_environment_values_are_masked_and_unset_stays_unset():
    env = {"HF_TOKEN": "abc", "API_KEY": None, "PATH": "/bin"}
    assert redact_env(env) == {"HF_TOKEN": "***", "API_KEY": None, "PATH": "/bin"}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["run", "--hf-token", "abc", "-k", "uva"], ["run", "--hf-token", "***", "-k", "uva"]),
        (["--hf-token=abc"], ["--hf-token=***"]),
        (["HF_TOKEN=abc"], ["HF_TOKEN=***"]),
        (["--hf-token", "-abc"], ["--hf-token", "***"]),
        (["--hf-token", "--seed", "1"], ["--hf-token", "--seed", "1"]),
        (["--max-num-batched-tokens", "64"], ["--max-num-batched-tokens", "64"]),
    ],
)
def test_arguments_are_masked(argv, expected):
    assert redact_argv(argv) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("set HF_TOKEN=abc and go", "set HF_TOKEN=*** and go"),
        ("HF_TOKEN='a b'", "HF_TOKEN='***'"),
        ("{'HF_TOKEN': 'abc', 'PATH': '/bin'}", "{'HF_TOKEN': '***', 'PATH': '/bin'}"),
        ("harness run --api-key abc -k x", "harness run --api-key *** -k x"),
        ("https://x.org/?token=abc&n=1", "https://x.org/?token=***&n=1"),
        ("request 0 at position 2, expected token 12", None),
        ("unknown key: 'foo'", None),
        ("max_num_batched_tokens=64", None),
        ("token == expected", None),
    ],
)
def test_text_is_masked_only_where_a_secret_name_is_given_a_value(text, expected):
    assert redact_text(text) == (text if expected is None else expected)


def test_json_is_masked_by_name_at_any_depth_and_numbers_stay():
    data = {"env": {"HF_TOKEN": "abc", "N": "1"}, "log": ["API_KEY=abc"], "token": 12}
    assert redact_json(data) == {
        "env": {"HF_TOKEN": "***", "N": "1"},
        "log": ["API_KEY=***"],
        "token": 12,
    }
