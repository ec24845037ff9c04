import pytest

from harness.refengine import envs


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in envs.DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    envs.disable_envs_cache()
    yield
    envs.disable_envs_cache()


def test_unset_variables_have_their_defaults():
    assert envs.VLLM_USE_V2_MODEL_RUNNER is None
    assert envs.VLLM_ENABLE_V1_MULTIPROCESSING is True
    assert envs.VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY is False
    assert envs.VLLM_WEIGHT_OFFLOADING_DISABLE_UVA is False
    assert envs.read_envs() == envs.DEFAULTS


@pytest.mark.parametrize("name", sorted(envs.DEFAULTS))
def test_a_variable_is_read_when_it_is_asked_for(name, monkeypatch):
    for text, value in (("1", True), ("0", False)):
        monkeypatch.setenv(name, text)

        assert getattr(envs, name) is value


@pytest.mark.parametrize("text", ["", "yes", "True", "2", " 1"])
def test_other_values_are_refused_by_name(text, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", text)

    with pytest.raises(ValueError, match=f"VLLM_USE_V2_MODEL_RUNNER='{text}' must be 0 or 1"):
        _ = envs.VLLM_USE_V2_MODEL_RUNNER
    with pytest.raises(ValueError, match="must be 0 or 1"):
        envs.enable_envs_cache()
    assert not envs.is_envs_cache_enabled()


def test_a_frozen_value_stays_until_the_cache_is_disabled(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    envs.enable_envs_cache()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")

    assert envs.VLLM_USE_V2_MODEL_RUNNER is True
    assert envs.read_envs()["VLLM_USE_V2_MODEL_RUNNER"] is True
    envs.enable_envs_cache()  # a second call does not read again
    assert envs.VLLM_USE_V2_MODEL_RUNNER is True
    envs.disable_envs_cache()
    assert envs.VLLM_USE_V2_MODEL_RUNNER is False


def test_a_copy_of_frozen_values_cannot_change_them():
    envs.enable_envs_cache()
    envs.read_envs()["VLLM_USE_V2_MODEL_RUNNER"] = True

    assert envs.VLLM_USE_V2_MODEL_RUNNER is None


def test_an_unknown_variable_is_an_attribute_error():
    with pytest.raises(AttributeError, match="VLLM_USE_V3"):
        _ = envs.VLLM_USE_V3
    assert "VLLM_USE_V2_MODEL_RUNNER" in dir(envs)
