"""Names lead to checkpoints: models.yaml, folders, the hub's cache, stand-ins; errors say where."""

import json
import shutil
import sys
import types
from pathlib import Path

import pytest

from harness.core import MatrixError, ModelNotFoundError, ModelSpec, UsageError, decode, encode
from harness.settings.hub import download_snapshot, find_snapshot, locate_hub_cache
from harness.settings.models import (
    PACKAGE,
    list_models,
    load_model,
    locate_checkpoint_cache,
    locate_models_file,
)
from harness.settings.workloads import load_workload

TINY = PACKAGE / "checkpoints" / "tiny-llama"
SEEDED = (
    *("seeded-llama-16", "seeded-llama-tied", "seeded-mistral", "seeded-qwen3"),
    *("seeded-llama-int8", "seeded-lfm2", "seeded-llama-tower"),
)
HUB_IDS = {
    "hmellor/tiny-random-LlamaForCausalLM": "tiny-llama",
    "meta-llama/Llama-3.2-1B-Instruct": "seeded-llama-tied",
}


@pytest.fixture
def env(tmp_path):
    return {"HARNESS_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def no_download(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the hub was asked")

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=refuse)
    )


def make_snapshot(cache, repo_id, commit="abc", *, main=True, source=TINY):
    home = cache / ("models--" + repo_id.replace("/", "--"))
    folder = home / "snapshots" / commit
    shutil.copytree(source, folder)
    if main:
        (home / "refs").mkdir(parents=True, exist_ok=True)
        (home / "refs" / "main").write_text(commit)
    return folder


# names and folders


@pytest.mark.parametrize("name", [e.name for e in list_models() if e.source != "hub"])
def test_every_listed_model_loads_and_is_as_listed(name, env):
    entry = next(e for e in list_models() if e.name == name)
    spec = load_model(name, env=env)
    assert (name, entry.architecture, entry.layers) == (
        spec.name,
        spec.architecture,
        spec.num_layers,
    )
    assert (entry.source, entry.dtype, entry.seed) == (spec.source, spec.dtype, spec.seed)
    assert spec.config["architectures"] == [entry.architecture]
    assert spec.config["head_dim"] in (32, 64)
    assert spec.stand_in_for is None
    assert (Path(spec.path) / "model.safetensors").is_file()
    assert spec == decode(ModelSpec, json.loads(json.dumps(encode(spec))))


def test_the_list_covers_what_the_matrix_needs():
    entries = {e.name: e for e in list_models()}
    assert set(entries) == {"tiny-llama", *SEEDED, *HUB_IDS}
    assert entries["seeded-llama-16"].layers == 16
    assert entries["seeded-llama-tied"].config["tie_word_embeddings"] is True
    assert entries["seeded-mistral"].config["sliding_window"] == 64
    assert {e.architecture for e in entries.values()} == {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen3ForCausalLM",
        "Lfm2ForCausalLM",
        "PromptTowerLlamaForCausalLM",
    }
    assert {e.dtype for e in entries.values()} == {"float32"}


def test_an_alias_leads_to_its_model(env):
    assert load_model("tiny", env=env) == load_model("tiny-llama", env=env)


def test_dtype_overrides_the_entry_and_must_be_known(env):
    assert load_model("tiny-llama", env=env, dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(UsageError, match="dtype='int8' must be one of float32"):
        load_model("tiny-llama", env=env, dtype="int8")


def test_unknown_model_lists_known_ones_and_the_nearest(env, no_download):
    with pytest.raises(ModelNotFoundError) as caught:
        load_model("seeded-mistal", env=env)
    text = str(caught.value)
    assert "Did you mean 'seeded-mistral'?" in text
    assert all(e.name in text for e in list_models())
    assert "\n" not in text


def test_a_folder_is_a_model(env, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(TINY, folder)
    spec = load_model(str(folder), env=env)
    assert (spec.source, spec.path, spec.num_layers) == ("local", str(folder), 8)


def test_a_config_without_head_dim_gets_the_implied_values(env, tmp_path):
    shutil.copytree(TINY, tmp_path / "mine")
    file = tmp_path / "mine" / "config.json"
    config = json.loads(file.read_text())
    for key in ("head_dim", "num_key_value_heads", "tie_word_embeddings"):
        del config[key]
    file.write_text(json.dumps(config))
    config = load_model(str(tmp_path / "mine"), env=env).config
    assert (config["head_dim"], config["num_key_value_heads"]) == (32, 4)
    assert config["tie_word_embeddings"] is False


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architecture 'GPT2LMHeadModel' .* must be one of",
        ),
        ({"architectures": None}, "architecture None"),
        ({"hidden_size": "big"}, "hidden_size='big' .* whole number"),
        ({"num_hidden_layers": None}, "num_hidden_layers=None"),
    ],
)
def test_a_folder_with_an_unusable_config_is_refused(env, tmp_path, change, text):
    shutil.copytree(TINY, tmp_path / "mine")
    file = tmp_path / "mine" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelNotFoundError, match=text):
        load_model(str(tmp_path / "mine"), env=env)


def test_a_folder_without_weights_or_config_is_refused(env, tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"cannot read config\.json"):
        load_model(str(tmp_path), env=env)
    shutil.copy(TINY / "config.json", tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no \*\.safetensors"):
        load_model(str(tmp_path), env=env)


@pytest.mark.parametrize("name", ["./none", "/none/there", "~/none", "a/b/c"])
def test_a_path_that_leads_nowhere_is_no_hub_id(name, env, no_download):
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        load_model(name, env={**env, "HF_HUB_OFFLINE": ""})


# hub


@pytest.mark.parametrize(("hub_id", "stand_in"), HUB_IDS.items())
def test_a_hub_model_out_of_reach_is_named_a_stand_in(hub_id, stand_in, env, no_download):
    spec = load_model(hub_id, env=env)
    assert (stand_in, hub_id) == (spec.name, spec.stand_in_for)
    assert spec.display_name == f"{stand_in} (stand-in for {hub_id})"
    assert spec == load_model(hub_id.split("/")[1], env=env), "its alias"


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG"])
def test_the_hub_cache_is_used_before_anything_else(variable, env, tmp_path, no_download):
    hub_id = "hmellor/tiny-random-LlamaForCausalLM"
    values = {
        "HF_HOME": ({"HF_HOME": str(tmp_path / "h")}, tmp_path / "h" / "hub"),
        "XDG": ({"XDG_CACHE_HOME": str(tmp_path)}, tmp_path / "huggingface" / "hub"),
    }
    extra, cache = values.get(variable, ({variable: str(tmp_path / "c")}, tmp_path / "c"))
    folder = make_snapshot(cache, hub_id)
    assert cache == locate_hub_cache({**env, **extra})
    spec = load_model(hub_id, env={**env, **extra})
    assert (hub_id, None, "local", str(folder)) == (
        spec.name,
        spec.stand_in_for,
        spec.source,
        spec.path,
    )


def test_a_cached_hub_id_needs_no_entry(env, tmp_path, no_download):
    folder = make_snapshot(locate_hub_cache(env), "someone/some-model")
    assert load_model("someone/some-model", env=env).path == str(folder)


def test_main_is_preferred_and_a_partial_snapshot_is_passed_over(env):
    cache = locate_hub_cache(env)
    main = make_snapshot(cache, "a/b", "111")
    other = make_snapshot(cache, "a/b", "222", main=False)
    assert main == find_snapshot("a/b", env)
    index = {"weight_map": {"x": "model.safetensors", "y": "model-2.safetensors"}}
    (main / "model.safetensors.index.json").write_text(json.dumps(index))
    assert other == find_snapshot("a/b", env)
    (other / "model.safetensors").unlink()
    assert find_snapshot("a/b", env) is None
    assert find_snapshot("a/none", env) is None


def test_a_download_is_used_where_it_is_allowed(env, tmp_path, monkeypatch):
    asked = []

    def give(repo_id, *, cache_dir, **kwargs):
        asked.append((repo_id, kwargs["etag_timeout"] <= 10))
        return str(make_snapshot(Path(cache_dir), repo_id))

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=give)
    )
    hub_id = "meta-llama/Llama-3.2-1B-Instruct"
    spec = load_model(hub_id, env={**env, "HF_HUB_OFFLINE": "0"})
    assert (hub_id, None) == (spec.name, spec.stand_in_for)
    assert asked == [(hub_id, True)]


def test_a_failed_download_ends_in_the_stand_in_and_keeps_its_reason(env, monkeypatch):
    def fail(repo_id, **kwargs):
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fail)
    )
    env = {**env, "HF_HUB_OFFLINE": ""}
    assert download_snapshot("a/b", env) == "the hub gave ConnectionError: no route to host"
    assert load_model("hmellor/tiny-random-LlamaForCausalLM", env=env).stand_in_for is not None
    with pytest.raises(ModelNotFoundError, match=r"hub gave ConnectionError: no route to host\."):
        load_model("someone/unlisted", env=env)


def test_without_huggingface_hub_nothing_is_downloaded(env, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    env = {**env, "HF_HUB_OFFLINE": ""}
    assert download_snapshot("a/b", env) == "huggingface_hub is not installed"


def copy_of_lfm2(tmp_path, env, **changes):
    """A folder of one's own whose config leaves out what LFM2's code takes for granted."""
    folder = tmp_path / "mine"
    shutil.copytree(load_model("seeded-lfm2", env=env).path, folder)
    config = json.loads((folder / "config.json").read_text())
    for name in ("layer_types", "block_auto_adjust_ff_dim", "tie_word_embeddings"):
        del config[name]
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "implied"),
    [
        ({}, ("full_attention", 256, True)),
        ({"full_attn_idxs": [1]}, ("conv", 256, True)),
        ({"block_ff_dim": 1000, "block_multiple_of": 8}, ("full_attention", 672, True)),
        ({"block_ffn_dim_multiplier": 3.0}, ("full_attention", 768, True)),
        ({"block_auto_adjust_ff_dim": False}, ("full_attention", 352, True)),
        ({"tie_embedding": False}, ("full_attention", 256, False)),
    ],
)
def test_what_an_lfm2s_config_implies_is_as_transformers_reads_it(env, tmp_path, changes, implied):
    transformers = pytest.importorskip("transformers")
    folder = copy_of_lfm2(tmp_path, env, **changes)

    config = load_model(str(folder), env=env).config

    theirs = transformers.Lfm2Config.from_pretrained(folder)
    rows = transformers.models.lfm2.modeling_lfm2.Lfm2MLP(theirs).w1.out_features
    found = (config["layer_types"][0], config["intermediate_size"], config["tie_word_embeddings"])
    assert found == implied == (theirs.layer_types[0], rows, theirs.tie_word_embeddings)
    assert config["layer_types"] == theirs.layer_types
    assert config["block_auto_adjust_ff_dim"] is False


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{conv_bias: true}", "conv_bias=true is not implemented"),
        ("{block_auto_adjust_ff_dim: true}", "block_auto_adjust_ff_dim=true is not implemented"),
        ("{num_hidden_layers: 4}", "layer_types has 8 entries for 4 layers"),
        ("{layer_types: [conv, mamba]}", "one of conv, full_attention, found 'mamba'"),
        ("{mlp_bias: true}", "unknown key 'mlp_bias'"),
    ],
)
def test_a_seeded_lfm2_is_of_known_layers(tmp_path, config, text):
    body = "  s:\n    description: x\n    source: seeded\n    seed: 1\n"
    file = write_models(
        tmp_path, f"{body}    architecture: Lfm2ForCausalLM\n    config: {config}\n"
    )
    with pytest.raises(MatrixError, match=text):
        list_models(file)


# models.yaml


def write_models(tmp_path, body):
    file = tmp_path / "models.yaml"
    file.write_text("models:\n" + body)
    return file


GOOD = """\
  mine:
    description: a folder
    source: local
    architecture: LlamaForCausalLM
    layers: 8
    path: folder
    dtype: bfloat16
"""
HUB = """\
  a/b:
    description: hub
    source: hub
    architecture: LlamaForCausalLM
    layers: 8
    path: folder
"""


def test_a_models_file_of_ones_own(env, tmp_path):
    shutil.copytree(TINY, tmp_path / "folder")
    file = write_models(tmp_path, GOOD)
    spec = load_model("mine", models_file=file, env=env)
    assert (spec.source, spec.dtype, spec.path) == ("local", "bfloat16", str(tmp_path / "folder"))


def test_a_hub_models_local_copy_comes_first(env, tmp_path, no_download):
    file = write_models(tmp_path, HUB)
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE is set"):
        load_model("a/b", models_file=file, env=env)
    shutil.copytree(TINY, tmp_path / "folder")
    assert load_model("a/b", models_file=file, env=env).path == str(tmp_path / "folder")


@pytest.mark.parametrize(
    ("body", "place", "text"),
    [
        (GOOD + "    colour: red\n", "9:5", "unknown key 'colour'"),
        (GOOD + "    seed: 1\n", "9:5", "unknown key 'seed'"),
        (GOOD + "    layers: 9\n", "9:5", "key 'layers' is given twice"),
        (GOOD + GOOD, "9:3", "key 'mine' is given twice"),
        (GOOD + "    aliases: mine\n", "9:14", "expected a list, found 'mine'"),
        (GOOD + "    aliases: [mine]\n", "3:5", "name 'mine' .* already belongs"),
        (GOOD.replace("layers: 8", "layers: 0"), "6:13", "a whole number >= 1, found 0"),
        (GOOD.replace("layers: 8", "layers: true"), "6:13", "a whole number, found True"),
        (GOOD.replace("    path: folder\n", ""), "3:5", "missing key 'path'"),
        (GOOD.replace("local", "moon"), "4:13", "one of seeded, shipped, local, hub, found 'moon'"),
        (GOOD.replace("Llama", "GPT2"), "5:19", "one of Llama.*, found 'GPT2ForCausalLM'"),
        (GOOD.replace("bfloat16", "int8"), "8:12", "one of float32, .*, found 'int8'"),
        (GOOD.replace("    source: local\n", ""), "3:5", "missing key 'source'"),
        (HUB + "    stand_in: none\n", "8:15", "stand_in='none' must name a model here"),
        (HUB + "    stand_in: a/b\n", "8:15", "stand_in='a/b' must name a model here"),
        (HUB.replace("Llama", "Qwen3") + "    stand_in: mine\n" + GOOD, "8:15",
         "is a LlamaForCausalLM, but 'a/b' is a Qwen3ForCausalLM"),
        ("  mine: 3\n", "2:9", "expected a mapping, found 3"),
        ("  mine: [\n", "3:1", "not YAML"),
    ],
)  # fmt: skip
def test_an_error_in_models_yaml_has_its_position(tmp_path, body, place, text):
    file = write_models(tmp_path, body)
    with pytest.raises(MatrixError, match=text) as caught:
        list_models(file)
    assert str(caught.value).startswith(f"{file}:{place}: "), str(caught.value)


@pytest.mark.parametrize(
    ("config", "column", "text"),
    [
        ("{num_layers: 2}", 14, "unknown key 'num_layers'"),
        ("{sliding_window: 2}", 14, "unknown key 'sliding_window'"),
        ("{model_type: llama}", 14, "unknown key 'model_type'"),
        ("{hidden_size: 0}", 27, "a whole number >= 1, found 0"),
        ("{tie_word_embeddings: 1}", 35, "true or false, found 1"),
        ("{rope_theta: -1}", 26, "a number > 0, found -1"),
        ("{torch_dtype: int8}", 27, "one of float32, .*, found 'int8'"),
        ("{head_dim: 31}", 13, "head_dim=31 must be even"),
        ("{num_key_value_heads: 3}", 13, "num_attention_heads=4 must be a multiple of 3"),
    ],
)
def test_an_error_in_a_config_has_its_position(tmp_path, config, column, text):
    body = (
        "  s:\n    description: d\n    source: seeded\n    architecture: LlamaForCausalLM\n"
        f"    seed: 1\n    config: {config}\n"
    )
    file = write_models(tmp_path, body)
    with pytest.raises(MatrixError, match=text) as caught:
        list_models(file)
    assert str(caught.value).startswith(f"{file}:7:{column}: "), str(caught.value)


def test_a_models_file_that_is_no_list_of_models(tmp_path):
    file = tmp_path / "models.yaml"
    for body, text in {
        "": ":1:1: the file is empty",
        "a: 1\n": ":1:1: unknown key 'a'. Known: models",
        "{}\n": ":1:1: missing key 'models'",
        "- 1\n": ":1:1: expected a mapping",
    }.items():
        file.write_text(body)
        with pytest.raises(MatrixError) as caught:
            list_models(file)
        assert str(caught.value).startswith(f"{file}{text}")
    with pytest.raises(MatrixError, match="no such file"):
        list_models(tmp_path / "none.yaml")


def test_the_projects_own_file_is_found():
    assert locate_models_file().name == "models.yaml"


def test_the_cache_follows_the_environment(tmp_path):
    home = {"HOME": "/h"}
    assert locate_checkpoint_cache(home) == Path("/h/.cache/offload-harness/checkpoints")
    xdg = {**home, "XDG_CACHE_HOME": "/x"}
    assert locate_checkpoint_cache(xdg) == Path("/x/offload-harness/checkpoints")
    own = {**xdg, "HARNESS_CACHE": str(tmp_path)}
    assert locate_checkpoint_cache(own) == tmp_path / "checkpoints"


# what transformers makes of them


def load_in_transformers(spec):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        spec.path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), "every tensor is found and none is left over"
    return model.eval()


@pytest.mark.parametrize("name", ["tiny-llama", *(n for n in SEEDED if n != "seeded-llama-tower")])
def test_transformers_loads_it_whole_and_gives_finite_spread_logits(name, env):
    spec = load_model(name, env=env)
    model = load_in_transformers(spec)
    import torch

    assert type(model).__name__ == spec.architecture
    for key in ("num_hidden_layers", "head_dim", "vocab_size", "tie_word_embeddings"):
        assert getattr(model.config, key) == spec.config[key]
    assert getattr(model.config, "sliding_window", None) == spec.config.get("sliding_window")
    assert model.config.rope_parameters["rope_theta"] == spec.config["rope_theta"]
    prompt = torch.tensor([load_workload("default", spec).prompt_token_ids[-1]])
    with torch.inference_mode():
        logits = model(prompt).logits
    assert torch.isfinite(logits).all()
    assert logits.std() > 2, "logits are spread, not near-tied"


def test_the_window_of_the_mistral_matters_within_a_prompt(env):
    spec = load_model("seeded-mistral", env=env)
    model = load_in_transformers(spec)
    import torch

    prompt = torch.tensor([load_workload("default", spec).prompt_token_ids[-1]])
    with torch.inference_mode():
        windowed = model(prompt).logits.argmax(-1)
        model.config.sliding_window = None
        full = model(prompt).logits.argmax(-1)
    assert torch.equal(windowed[:, :64], full[:, :64])
    assert not torch.equal(windowed, full)


def greedy_margins(model, prompt, max_tokens):
    """Margin (nats) between the two best tokens at each step, and the ids."""
    import torch

    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
    best = torch.cat(out.scores).log_softmax(-1).topk(2).values
    return (best[:, 0] - best[:, 1]).tolist(), out.sequences[0, len(prompt) :].tolist()


def test_tiny_llama_is_a_trained_model_whose_output_reads_as_text(env):
    tokenizers = pytest.importorskip("tokenizers")
    spec = load_model("tiny-llama", env=env)
    model = load_in_transformers(spec)
    assert (TINY / "model.safetensors").stat().st_size <= 4_000_000
    tokenizer = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 1024
    workload = load_workload("default", spec)
    margins, words = [], []
    for prompt in workload.prompt_token_ids:
        found, ids = greedy_margins(model, prompt, workload.sampling_params.max_tokens)
        margins += found
        words.append(set(tokenizer.decode(ids).replace(".", " ").split()))
    assert sorted(margins)[len(margins) // 2] > 1
    stories = [w for w in words if {"the", "a", "and"} & w]
    assert len(stories) >= 4
    assert all(len(w) > 8 for w in words), "no answer is one token again and again"


def test_tiny_llama_knows_much_more_than_frequencies(env):
    torch = pytest.importorskip("torch")
    spec = load_model("tiny-llama", env=env)
    model = load_in_transformers(spec)
    prompt = torch.tensor([load_workload("default", spec).prompt_token_ids[-1]])
    with torch.inference_mode():
        loss = model(input_ids=prompt, labels=prompt).loss.item()
    assert loss < 1.5, "held-out text; frequencies alone give about 4.7 nats"
