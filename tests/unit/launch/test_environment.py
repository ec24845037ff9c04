import pytest

from harness.core import OffloadConfig, Setting
from harness.launch.environment import INHERITED, can_fork_warm, child_environment

OWN = {
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONCOERCECLOCALE",
    "PYTHONHASHSEED",
    "PYTHONSAFEPATH",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
}


def test_nothing_but_the_allow_list_leaks_from_the_caller():
    parent = {
        "PATH": "/bin",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "PYTHONPATH": "/somewhere",
        "HF_TOKEN": "secret",
        "RANDOM_VARIABLE": "1",
    }

    env = child_environment(Setting(), parent)

    assert {"PATH", *OWN} == set(env)
    assert env["PATH"] == "/bin"


def test_every_name_of_the_allow_list_is_inherited():
    assert set(INHERITED) <= set(child_environment(Setting(), dict.fromkeys(INHERITED, "x")))


def test_the_process_environment_is_the_default_parent(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("VLLM_FROM_THE_CALLER", "1")

    env = child_environment(Setting())

    assert env["LC_ALL"] == "C.UTF-8"
    assert "VLLM_FROM_THE_CALLER" not in env


def test_a_setting_decides_its_own_variables():
    offload = OffloadConfig(pin_memory=False, uva=False)
    setting = Setting(runner="v2", offload=offload, multiprocessing=True, env={"HARNESS_X": "3"})

    env = child_environment(setting, {})

    assert env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert env["VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"] == "1"
    assert env["VLLM_WEIGHT_OFFLOADING_DISABLE_UVA"] == "1"
    assert env["HARNESS_X"] == "3"


def test_none_unsets_an_inherited_variable():
    env = child_environment(Setting(env={"HF_HOME": None}), {"HF_HOME": "/h", "HOME": "/"})

    assert "HF_HOME" not in env
    assert env["HOME"] == "/"


def test_threads_are_pinned():
    env = child_environment(Setting(), {"OMP_NUM_THREADS": "64"}, num_threads=3)

    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("3", "3")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"env": {"HARNESS_X": "1"}}, True),
        ({"env": {"OPENBLAS_CORETYPE": "Haswell"}}, False),
        ({"env": {"HF_HOME": None}}, False),
        ({"python": "/usr/bin/python3"}, False),
        ({"engine_args": {"device": "cuda"}}, False),
        ({"engine_args": {"device": "simulated"}}, True),
    ],
)
def test_only_what_a_fork_can_honour_is_forked(fields, expected):
    assert can_fork_warm(Setting(**fields)) is expected
