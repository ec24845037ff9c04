"""LFM2: a convolution's history in pages, whatever chunk, runner or graph a token comes in."""

import random

import pytest
import torch
import transformers

from harness.refengine import SamplingParams
from harness.refengine.config import EngineConfig, UnsupportedSettingError
from harness.refengine.device import get_device
from harness.refengine.kv_cache import allocate_kv_caches, block_bytes
from harness.refengine.layers import build_context, rms_norm, rotary_table
from harness.refengine.models import ModelShape, make_model
from harness.refengine.models.lfm2 import short_conv_block
from harness.settings import load_model

SMALL = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
}
CONV_WEIGHTS = [f"model.layers.{idx}.short_conv.conv.weight" for idx in (0, 1, 3, 5, 6)]
CELLS = [(runner, eager) for runner in ("v1", "v2") for eager in (True, False)]


@pytest.fixture(scope="module")
def checkpoint():
    return load_model("seeded-lfm2").path


@pytest.fixture
def start(make_llm, engine_env, checkpoint):
    """An engine on the seeded checkpoint; those before it are ended."""

    def make(runner="v2", **args):
        for engine in make_llm.engines:
            engine.shutdown()
        engine_env.setenv("VLLM_USE_V2_MODEL_RUNNER", {"v1": "0", "v2": "1"}[runner])
        args = {"dtype": "float32", "enforce_eager": True, "max_model_len": 128, **args}
        return make_llm(checkpoint, load_format="auto", **args)

    return make


def worker_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def answers(llm, prompts, max_tokens=12):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=3)
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params)
    return [(o.token_ids, torch.tensor(o.logprobs.chosen)) for o in outputs]


def make_prompts(lengths):
    pick = random.Random(3)
    return [[pick.randrange(3, 1024) for _ in range(n)] for n in lengths]


def equal(left, right):
    return all(
        a == b and torch.allclose(x, y, atol=1e-4)
        for (a, x), (b, y) in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(("runner", "eager"), CELLS)
def test_a_prompt_in_chunks_is_answered_as_a_whole_one(start, runner, eager):
    prompts = make_prompts((1, 2, 5, 37, 61))
    whole = answers(start(runner, enforce_eager=eager), prompts)

    # chunks of 7 and less, so that ends of chunks fall anywhere among taps and blocks of 4
    parts = start(
        runner, enforce_eager=eager, max_num_batched_tokens=7, max_num_seqs=3, block_size=4
    )

    assert equal(whole, answers(parts, prompts))


@pytest.mark.parametrize(("runner", "eager"), CELLS)
def test_a_token_that_was_decoded_is_answered_as_one_of_the_prompt(start, runner, eager):
    llm = start(runner, enforce_eager=eager)
    prompts = make_prompts((1, 2, 3, 18))
    decoded = answers(llm, prompts)

    for at in (1, 2, 7):
        longer = [p + ids[:at] for p, (ids, _) in zip(prompts, decoded, strict=True)]
        rest = [(ids[at:], logprobs[at:]) for ids, logprobs in decoded]
        assert equal(rest, answers(llm, longer, 12 - at))


def test_runners_and_graphs_agree_to_the_bit(start):
    prompts = make_prompts((1, 4, 23))
    found = [answers(start(runner, enforce_eager=eager), prompts) for runner, eager in CELLS]

    for other in found[1:]:
        assert [ids for ids, _ in found[0]] == [ids for ids, _ in other]
        assert all(torch.equal(x, y) for (_, x), (_, y) in zip(found[0], other, strict=True))


def test_blocks_of_an_ended_request_leave_nothing_to_the_next(start):
    llm = start()
    alone = answers(llm, make_prompts((30,)))
    answers(llm, make_prompts((60, 60, 60, 60)))

    assert equal(alone, answers(llm, make_prompts((30,))))


@pytest.mark.parametrize("taps", [1, 3, 5])
def test_ahead_of_a_prompt_there_is_nothing(taps):
    torch.manual_seed(0)
    x, norm, conv = torch.randn(6, 8), torch.rand(8), torch.randn(8, 1, taps)
    in_proj, out_proj, cache = torch.randn(24, 8), torch.randn(8, 8), torch.full((4, 2, 8), 9.0)
    ctx = build_context(
        torch.arange(6), torch.tensor([[3, 1, 2]]), num_tokens=(6,), seq_lens=(6,), block_size=2,
        window=None, dtype=torch.float32,
    )  # fmt: skip

    found = short_conv_block(x, None, ctx, cache, 1e-5, norm, conv, in_proj, out_proj)

    gate, out_gate, value = (rms_norm(x, norm, 1e-5) @ in_proj.T).chunk(3, -1)
    padded = torch.nn.functional.pad((gate * value).T[None], (taps - 1, 0))
    mixed = torch.nn.functional.conv1d(padded, conv, groups=8)[0].T
    assert torch.allclose(found, x + (out_gate * mixed) @ out_proj.T, atol=1e-4)
    kept = cache[torch.tensor([3, 1, 2])].reshape(6, 8)
    assert torch.allclose(kept, gate * value, atol=1e-5)


class Launches:
    """Site and names of what each work read."""

    def __init__(self):
        self.seen = []

    def on_launch(self, work):
        names = [getattr(tensor, "param_name", "") for tensor in work.reads]
        self.seen.append((work.site, [name for name in names if name]))

    def __getattr__(self, name):
        return lambda *args: None


def test_at_decode_the_convolution_reads_its_weight_by_name(start):
    llm = start()
    worker = worker_of(llm)
    answers(llm, make_prompts((5,)), 1)
    seen = Launches()
    worker.device.observers.append(seen)

    answers(llm, make_prompts((5,)), 2)

    prompt_and_decode = [names for site, names in seen.seen if site.endswith(".short_conv")]
    read = [name for names in prompt_and_decode for name in names if "conv.conv" in name]
    assert read == CONV_WEIGHTS * 2
    assert all(
        names[1:] == [f"{names[1].removesuffix('conv.weight')}{part}.weight" for part in PARTS]
        for names in prompt_and_decode
    )


PARTS = ("conv", "in_proj", "out_proj")


def test_parameters_have_vllms_names_in_its_order(engine_env, make_checkpoint):
    config = EngineConfig.from_args(make_checkpoint(**SMALL))
    model = make_model(config, get_device())

    tail = ["feed_forward.w13", "feed_forward.w2", "operator_norm", "ffn_norm"]
    mixers = ["qkv_proj", "out_proj", "q_layernorm", "k_layernorm"]
    conv = [*(f"short_conv.{part}" for part in PARTS), *tail]
    attention = [*(f"self_attn.{part}" for part in mixers), *tail]
    layers = [f"layers.{i}.{n}" for i, names in enumerate((conv, attention, conv)) for n in names]
    assert [name for name, _ in model.named_parameters()] == [
        f"model.{name}.weight" for name in ("embed_tokens", *layers, "embedding_norm")
    ]


def test_a_block_counts_each_layer_by_its_kind(engine_env, make_checkpoint):
    config = EngineConfig.from_args(make_checkpoint(**SMALL), block_size=8)
    shape, device = ModelShape.from_hf(config.hf_config), get_device()
    caches = allocate_kv_caches(3, config, shape, device)

    assert [tuple(cache.shape) for cache in caches] == [(3, 8, 32), (2, 3, 8, 1, 16), (3, 8, 32)]
    assert 8 * (32 + 2 * 16 + 32) * 4 == block_bytes(config, shape, torch.float32)
    assert 3 * 8 * 96 * 4 == device.memory_stats()["device"]["by_kind"]["kv_cache"]


@pytest.mark.parametrize(
    "config",
    [
        {"block_auto_adjust_ff_dim": True, "intermediate_size": 700},
        {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 8},
        {"block_ff_dim": 100},
        {"layer_types": None, "full_attn_idxs": [2]},
        {"layer_types": None},
        {"tie_embedding": False},
        {"conv_L_cache": 5, "num_key_value_heads": 2},
    ],
    ids="-".join,
)
def test_what_a_config_implies_is_what_transformers_makes_of_it(
    engine_env, make_checkpoint, config
):
    read = EngineConfig.from_args(make_checkpoint(**{**SMALL, **config}))
    shape = ModelShape.from_hf(read.hf_config)
    known = {k: v for k, v in read.hf_config.items() if k not in ("architectures", "dtype")}
    theirs = transformers.Lfm2Config(**known)
    with torch.device("meta"):
        model = transformers.Lfm2ForCausalLM(theirs)

    layer = model.model.layers[0]
    assert list(shape.layer_kinds) == theirs.layer_types
    assert shape.intermediate_size == layer.feed_forward.w1.out_features
    assert shape.is_tied == theirs.tie_word_embeddings
    assert shape.eps == theirs.norm_eps
    table = rotary_table(read.hf_config, shape.head_dim, 2, torch.float32)
    angle = theirs.rope_parameters["rope_theta"] ** (-2 / shape.head_dim)
    assert torch.allclose(table[1, 0, 1], torch.tensor(angle).cos())
    if not layer.is_attention_layer:
        assert shape.num_taps == layer.conv.conv.weight.shape[-1]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"conv_bias": True}, "conv_bias=True is not implemented"),
        ({"conv_dim": 64}, "conv_dim=64 must be hidden_size=32"),
        ({"block_dim": 16}, "block_dim=16 must be hidden_size=32"),
        ({"layer_types": ["conv"]}, r"layer_types=\['conv'\] must be 3 of full_attention, conv"),
        ({"layer_types": ["conv", "mamba", "conv"]}, "must be 3 of full_attention, conv"),
    ],
)
def test_what_is_not_implemented_is_refused(make_checkpoint, config, text):
    read = EngineConfig.from_args(make_checkpoint(**{**SMALL, **config}))

    with pytest.raises(UnsupportedSettingError, match=text):
        ModelShape.from_hf(read.hf_config)
