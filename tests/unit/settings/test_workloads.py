"""Prompts are fixed token ids within the vocabulary; no tokenizer is needed to have them."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.core import ModelNotFoundError, ModelSpec, UsageError, Workload, decode, encode
from harness.settings.models import PACKAGE, load_model
from harness.settings.workloads import WORKLOADS, load_workload

TINY = PACKAGE / "checkpoints" / "tiny-llama"
GOLDEN = (99, 138, 27, 87, 140, 15, 51, 54, 103, 179)


@pytest.fixture
def tiny(tmp_path):
    return load_model("tiny-llama", env={"HOME": str(tmp_path)})


@pytest.fixture
def plain(tmp_path):
    """A model without prompts of its own."""
    config = {
        "vocab_size": 300,
        "num_hidden_layers": 1,
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "max_position_embeddings": 4096,
    }
    return ModelSpec(
        name="plain", architecture="LlamaForCausalLM", config=config, path=str(tmp_path)
    )


@pytest.mark.parametrize("which", ["tiny", "plain"])
def test_default_has_eight_prompts_of_6_to_256_ids_and_64_new_tokens(which, request):
    workload = load_workload("default", request.getfixturevalue(which))
    lengths = [len(ids) for ids in workload.prompt_token_ids]
    assert len(lengths) >= 8
    assert (min(lengths), max(lengths)) == (6, 256)
    assert len(set(lengths)) == len(lengths)
    params = workload.sampling_params
    assert (params.max_tokens, params.temperature, params.logprobs) == (64, 0.0, 5)


@pytest.mark.parametrize("which", ["tiny", "plain"])
def test_short_and_oracle_have_the_stated_shape(which, request):
    model = request.getfixturevalue(which)
    short, oracle = (load_workload(name, model) for name in ("short", "oracle"))
    assert (len(short.prompt_token_ids), short.sampling_params.max_tokens) == (2, 8)
    lengths = [len(ids) for ids in oracle.prompt_token_ids]
    assert (len(lengths), min(lengths), max(lengths)) == (8, 1, 256)
    assert oracle.sampling_params.max_tokens == 64


@pytest.mark.parametrize("name", WORKLOADS)
def test_ids_are_within_the_vocabulary_and_prompts_differ(name, tiny, plain, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.settings.workloads.ensure_changed", lambda _model: tmp_path)
    for model in (tiny, plain):
        workload = load_workload(name, model)
        assert all(
            0 <= token < model.vocab_size for ids in workload.prompt_token_ids for token in ids
        )
        assert len(set(workload.prompt_token_ids)) == len(workload.prompt_token_ids)
    assert workload == decode(Workload, json.loads(json.dumps(encode(workload))))


def test_made_prompts_hold_no_token_that_ends_a_text(plain):
    prompts = load_workload("default", plain).prompt_token_ids
    tokens = {token for ids in prompts for token in ids}
    assert not tokens & {1, 2, 3}
    assert len(tokens) > 200


def test_prompts_are_the_same_in_another_process(plain):
    script = (
        "import json, sys; from harness.core import ModelSpec, decode;"
        "from harness.settings.workloads import load_workload;"
        "model = decode(ModelSpec, json.loads(sys.argv[1]));"
        "print(json.dumps(load_workload('default', model).prompt_token_ids));"
        "assert not {'torch', 'tokenizers', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(encode(plain))],
        cwd=PACKAGE.parent, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    there = tuple(tuple(ids) for ids in json.loads(done.stdout))
    assert there == load_workload("default", plain).prompt_token_ids


def test_made_prompts_never_change(plain):
    assert load_workload("short", plain).prompt_token_ids[0] == GOLDEN


def test_prompts_of_tiny_llama_are_text(tiny):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for name in WORKLOADS:
        for ids in load_workload(name, tiny).prompt_token_ids:
            text = tokenizer.decode(list(ids))
            assert text.isascii()
            assert text[0].isupper()
            documents = tokenizer.decode(list(ids), skip_special_tokens=False).split("<|end|>")
            again = [i for d in documents for i in (*tokenizer.encode(d).ids, 0)][:-1]
            assert len(ids) - len(again) in range(-3, 4), "text and ids are one"


def test_a_stand_in_uses_the_prompts_of_its_own_checkpoint(tiny):
    stand_in = replace(tiny, stand_in_for="someone/else")
    expected = load_workload("default", tiny).prompt_token_ids
    assert expected == load_workload("default", stand_in).prompt_token_ids


def test_a_short_context_cuts_long_prompts_only(plain):
    model = replace(plain, config={**plain.config, "max_position_embeddings": 128})
    lengths = [len(ids) for ids in load_workload("default", model).prompt_token_ids]
    assert lengths == [6, 12, 24, 48, 64, 64, 64, 64]
    model = replace(plain, config={**plain.config, "max_position_embeddings": 64})
    with pytest.raises(UsageError, match="asks for 64 new tokens, but model 'plain'"):
        load_workload("default", model)


def test_unknown_workload_lists_known_ones_and_the_nearest(plain):
    with pytest.raises(UsageError, match=r"Known: default, short, .*\. Did you mean 'short'\?"):
        load_workload("shrot", plain)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "no prompts for workload 'short'"),
        ("{}", "no prompts for workload 'short'"),
        ('{"short": [[1], [1], [2]]}', "must be 2 lists of token ids"),
        ('{"short": [[1], []]}', "must be 2 lists of token ids"),
        ('{"short": [[1], [1024]]}', "from 0 to 1023"),
        ('{"short": [[1], [true]]}', "must be 2 lists of token ids"),
        ('{"short": 3}', "must be 2 lists of token ids"),
    ],
)
def test_damaged_prompts_are_an_error_not_other_prompts(tiny, tmp_path, content, text):
    folder = tmp_path / "copy"
    shutil.copytree(TINY, folder)
    (folder / "prompts.json").write_text(content)
    with pytest.raises(ModelNotFoundError, match=text):
        load_workload("short", replace(tiny, path=str(folder)))
