"""Reaches into a live engine in this process, the way vLLM's own inside test does."""

import pytest

SETTINGS = [
    pytest.param({"cpu_offload_gb": 1}, "UVAOffloader", id="uva"),
    pytest.param(
        {"offload_group_size": 1, "offload_num_in_group": 1, "offload_prefetch_step": 1},
        "PrefetchOffloader",
        id="prefetch",
    ),
]
RUNNERS = [
    pytest.param("0", "harness.refengine.runner.v1", id="v1", marks=pytest.mark.runner_v1),
    pytest.param("1", "harness.refengine.runner.v2", id="v2", marks=pytest.mark.runner_v2),
]


@pytest.fixture
def clean_offloader():
    """Put the process-global offloader and the environment cache back."""
    from harness.refengine import envs
    from harness.refengine.offloader import get_offloader, set_offloader

    before = get_offloader()
    envs.disable_envs_cache()
    yield
    set_offloader(before)
    envs.disable_envs_cache()


@pytest.mark.inside
@pytest.mark.parametrize(("flag", "module"), RUNNERS)
@pytest.mark.parametrize(("kwargs", "offloader_class"), SETTINGS)
def test_weight_offloading_inside(
    monkeypatch, clean_offloader, harness_model, flag, module, kwargs, offloader_class
):
    from harness.refengine import LLM
    from harness.refengine.offloader import get_offloader
    from harness.settings import load_model

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", flag)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    model = load_model(harness_model)

    llm = LLM(model.path, enforce_eager=True, max_model_len=128, max_num_seqs=1, **kwargs)

    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    offloader = get_offloader()
    assert module == type(runner).__module__
    assert offloader_class == type(offloader).__name__
    if offloader_class == "UVAOffloader":
        assert offloader.cpu_offload_bytes > 0
    else:
        assert offloader.total_offloaded_bytes > 0
        assert offloader.buffer_pool is not None
    llm.shutdown()
