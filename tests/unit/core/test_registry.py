import pytest

from harness.core import Registry, UsageError


@pytest.fixture
def registry():
    registry = Registry("engine")
    registry.register("reference", "math:pi")
    registry.register("vllm", 2.0)
    return registry


def test_target_named_by_text_is_imported_on_first_use(registry):
    import math

    assert math.pi == registry.get("reference")
    assert 2.0 == registry.get("vllm")


def test_unknown_name_lists_the_known_ones_and_the_nearest(registry):
    with pytest.raises(UsageError) as caught:
        registry.get("vlm")

    expected = "Unknown engine 'vlm'. Known: reference, vllm. Did you mean 'vllm'?"
    assert expected == str(caught.value)


def test_name_registered_twice_is_refused(registry):
    with pytest.raises(ValueError, match="engine 'vllm' is registered twice"):
        registry.register("vllm", "x:y")


def test_names_keep_the_order_of_registration(registry):
    assert ["reference", "vllm"] == registry.names() == list(registry)
    assert "vllm" in registry
    assert "vlm" not in registry


def test_target_that_does_not_exist_fails_only_when_used():
    registry = Registry("judge")
    registry.register("broken", "harness.no_such_module:thing")

    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        registry.get("broken")
