import pytest

from harness.refengine.config import (
    ConfigError,
    EngineConfig,
    OffloadConfig,
    UnsupportedSettingError,
)


@pytest.fixture
def model(make_checkpoint):
    return make_checkpoint()


def test_unknown_argument_is_refused_with_the_nearest_known_one(model):
    with pytest.raises(ConfigError, match=r"'offload_group'.*Did you mean 'offload_group_size'\?"):
        EngineConfig.from_args(model, offload_group=2)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"offload_group_size": 2, "offload_num_in_group": 3}, "must be <= offload_group_size=2"),
        ({"offload_group_size": -1}, "offload_group_size=-1 must be >= 0"),
        ({"offload_num_in_group": 0}, "offload_num_in_group=0 must be >= 1"),
        ({"offload_group_size": 2, "offload_prefetch_step": 0}, "offload_prefetch_step=0"),
        ({"offload_backend": "prefetch"}, "needs offload_group_size > 0"),
        ({"offload_backend": "disk"}, "one of auto, uva, prefetch"),
        ({"cpu_offload_gb": -1}, "cpu_offload_gb=-1 must be a finite number >= 0"),
        ({"cpu_offload_gb": float("nan")}, "cpu_offload_gb=nan"),
        ({"cpu_offload_params": "mlp"}, "must be a list or set"),
        ({"dtype": "float8"}, "dtype='float8' must be one of"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"schedule": "random"}, "schedule='random'"),
        ({"load_format": "gguf"}, "load_format='gguf'"),
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be an integer >= 1"),
        ({"block_size": True}, "block_size=True must be an integer >= 1"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "must be >= max_num_seqs=9"),
        ({"max_model_len": 129}, "must be <= max_position_embeddings=128"),
        ({"max_model_len": 3}, "max_model_len=3 must be >= 4"),
    ],
)
def test_impossible_argument_is_refused_by_name(model, args, text):
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_args(model, **args)

    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_graphs_are_for_the_simulated_device_only(model):
    assert not EngineConfig.from_args(model, enforce_eager=False).enforce_eager
    message = "enforce_eager=False is not supported with device='cuda'"
    with pytest.raises(UnsupportedSettingError, match=message):
        EngineConfig.from_args(model, enforce_eager=False, device="cuda")
    assert issubclass(UnsupportedSettingError, NotImplementedError)
    assert issubclass(UnsupportedSettingError, ValueError)


def test_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        EngineConfig.from_args(str(tmp_path / "nowhere"))


def test_dtype_and_length_come_from_the_checkpoint(make_checkpoint):
    config = EngineConfig.from_args(make_checkpoint(dtype="bfloat16", max_position_embeddings=64))

    assert (config.dtype, config.model_len) == ("bfloat16", 64)


@pytest.mark.parametrize(
    ("args", "backend"),
    [
        ({}, "none"),
        ({"cpu_offload_gb": 1}, "uva"),
        ({"offload_group_size": 2}, "prefetch"),
        ({"offload_group_size": 2, "cpu_offload_gb": 1}, "prefetch"),
        ({"offload_group_size": 2, "cpu_offload_gb": 1, "offload_backend": "uva"}, "uva"),
    ],
)
def test_backend_is_resolved_as_vllm_does(args, backend):
    assert backend == OffloadConfig(**args).resolved_backend


@pytest.mark.parametrize(
    ("args", "ignored"),
    [
        ({"offload_group_size": 2, "cpu_offload_gb": 1}, "cpu_offload_gb=1 is ignored"),
        ({"cpu_offload_gb": 1, "offload_params": ["mlp"]}, "offload_params=['mlp'] is ignored"),
        ({"cpu_offload_params": ["mlp"]}, "cpu_offload_params=['mlp'] is ignored"),
        (
            {"offload_backend": "uva", "cpu_offload_gb": 1, "offload_group_size": 2},
            "offload_group_size=2 is ignored",
        ),
    ],
)
def test_ignored_request_is_kept_as_a_warning(model, args, ignored):
    (line,) = EngineConfig.from_args(model, **args).warnings

    assert line.startswith(ignored)


def test_setting_without_conflict_has_no_warning(model):
    assert (
        EngineConfig.from_args(model, cpu_offload_gb=1, cpu_offload_params=["mlp"]).warnings == []
    )


@pytest.mark.parametrize(
    ("content", "expected"), [(None, {2}), ({"eos_token_id": [7, 8]}, {7, 8}), ({}, {2})]
)
def test_end_tokens_come_from_generation_config_first(make_checkpoint, content, expected):
    import json
    from pathlib import Path

    folder = make_checkpoint()
    if content is not None:
        (Path(folder) / "generation_config.json").write_text(json.dumps(content))

    assert expected == EngineConfig.from_args(folder).eos_token_ids
