import pytest

from harness.core import OffloadConfig, Setting
from harness.launch.environment import (
    INHERITED,
    WarmKey,
    can_fork_warm,
    child_environment,
    kept_caches,
    warm_key,
)

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


def test_the_callers_folder_for_caches_is_read_here_and_not_inherited(monkeypatch):
    named = {"HARNESS_ENGINE_CACHE": "/kept"}
    monkeypatch.setenv("HARNESS_ENGINE_CACHE", "/of/this/process")

    assert "/kept" == kept_caches(named)
    assert [None, None] == [kept_caches({}), kept_caches({"HARNESS_ENGINE_CACHE": ""})]
    assert "/of/this/process" == kept_caches()
    assert "HARNESS_ENGINE_CACHE" not in child_environment(Setting(), named)


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
        ({"env": {"OPENBLAS_CORETYPE": "Haswell"}}, True),
        ({"env": {"HF_HOME": None}}, True),
        ({"engine": "vllm", "python": "/usr/bin/python3"}, True),
        ({"engine_args": {"device": "simulated"}}, True),
        ({"engine_args": {"device": "cuda"}}, False),
        ({"engine": "vllm", "server": True}, False),
    ],
)
def test_only_what_a_fork_can_honour_is_forked(fields, expected):
    assert can_fork_warm(Setting(**fields)) is expected


@pytest.mark.parametrize(
    "fields",
    [
        {"engine": "vllm"},
        {"python": "/usr/bin/python3"},
        {"env": {"OPENBLAS_CORETYPE": "Haswell"}},
        {"env": {"OPENBLAS_CORETYPE": "Haswell", "HF_HOME": None}},
        {"env": {"HF_HOME": None}},
    ],
)
def test_what_is_read_while_a_library_loads_has_a_warm_parent_of_its_own(fields):
    assert warm_key(Setting()) == WarmKey("reference", None, ())
    assert warm_key(Setting(**fields)) != warm_key(Setting())


def test_a_variable_of_vllm_beyond_the_owned_ones_has_a_warm_parent_of_its_own():
    extra = Setting(engine="vllm", env={"VLLM_BATCH_INVARIANT": "1"})

    assert warm_key(extra) != warm_key(Setting(engine="vllm"))


def test_early_variables_are_told_apart_in_any_order():
    env = {"B": "2", "A": "1"}

    assert WarmKey("vllm", None, (("A", "1"), ("B", "2"))) == warm_key(
        Setting(engine="vllm", env=env)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"runner": "v2"},
        {"offload": OffloadConfig(cpu_offload_gb=1)},
        {"multiprocessing": True},
        {"env": {"HARNESS_X": "1"}},
        {"release": "0.28.0"},
        {"faults": ("no-wait-for-copy",)},
    ],
)
def test_what_is_read_when_an_engine_starts_shares_one_warm_parent(fields):
    assert warm_key(Setting(engine="vllm", **fields)) == warm_key(Setting(engine="vllm"))
