import importlib
import json
import subprocess
import sys

import pytest

from harness.core import Setting
from harness.launch.plugin_folder import CACHES, locate_caches, register_plugin

SHOW = """
import json
from importlib.metadata import entry_points
found = entry_points(group="vllm.general_plugins")
print(json.dumps([[e.name, e.value] for e in found if e.name == "offload_harness"]))
"""


def plugins_seen(folder):
    env = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_child_with_the_folder_on_its_path_finds_the_plugin(tmp_path):
    register_plugin(tmp_path)

    assert [["offload_harness", "harness.launch.inside:enter"]] == plugins_seen(tmp_path)


def test_a_child_without_it_finds_none(tmp_path):
    assert [] == plugins_seen(tmp_path)


def test_what_is_registered_is_there_to_be_called(tmp_path):
    register_plugin(tmp_path)
    (_, value), *_ = plugins_seen(tmp_path)
    module, _, name = value.partition(":")

    assert callable(getattr(importlib.import_module(module), name))


def test_a_folder_registers_once(tmp_path):
    register_plugin(tmp_path)

    with pytest.raises(FileExistsError):
        register_plugin(tmp_path)


def test_caches_are_of_one_interpreter_and_release_in_the_session_or_in_a_kept_folder(tmp_path):
    old = Setting(engine="vllm", python="/some/python", release="0.28.0")
    new = Setting(engine="vllm", python="/some/python", release="0.32.0")
    other = Setting(engine="vllm", python="/other/python", release="0.32.0")

    places = [locate_caches(s, tmp_path / "scratch", None) for s in (old, new, other)]

    assert [set(CACHES)] * 3 == [set(place) for place in places]
    assert 3 * len(CACHES) == len({folder for place in places for folder in place.values()})
    kept = locate_caches(old, tmp_path / "scratch", str(tmp_path / "kept"))
    assert all(folder.startswith(f"{tmp_path}/kept/") for folder in kept.values())
    assert kept == locate_caches(old, tmp_path / "another", str(tmp_path / "kept"))


def test_a_cache_that_the_setting_names_is_left_to_it(tmp_path):
    own = Setting(engine="vllm", env={"VLLM_CACHE_ROOT": "/mine"})

    assert set(CACHES) - {"VLLM_CACHE_ROOT"} == set(locate_caches(own, tmp_path, None))
