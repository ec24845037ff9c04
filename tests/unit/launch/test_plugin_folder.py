import importlib
import json
import subprocess
import sys

import pytest

from harness.launch.plugin_folder import register_plugin

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
