"""What a package exports is really there, and stays lazy."""

import importlib

import pytest

PACKAGES = ["harness", "harness.core", "harness.settings", "harness.plan", "harness.launch",
            "harness.judge", "harness.record", "harness.report"]  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_every_exported_name_exists_once(name):
    package = importlib.import_module(name)

    assert len(set(package.__all__)) == len(package.__all__)
    assert [] == [n for n in package.__all__ if getattr(package, n, None) is None]


def test_unknown_name_is_an_attribute_error():
    import harness

    with pytest.raises(AttributeError, match="compare_three"):
        harness.compare_three  # noqa: B018
