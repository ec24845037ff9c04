import dataclasses

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from harness.core import OWNED_ENV, OffloadConfig, Setting, SettingError
from tests.strategies import settings

quick = hypothesis_settings(max_examples=40, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cpu_offload_gb": -0.5}, "cpu_offload_gb=-0.5 must be >= 0"),
        ({"cpu_offload_gb": float("nan")}, "cpu_offload_gb=nan"),
        ({"offload_group_size": -1}, "offload_group_size=-1 must be >= 0"),
        ({"offload_num_in_group": 0}, "offload_num_in_group=0 must be >= 1"),
        (
            {"offload_group_size": 2, "offload_num_in_group": 3},
            "offload_num_in_group=3 must be <= offload_group_size=2",
        ),
        (
            {"offload_group_size": 2, "offload_prefetch_step": 0},
            "offload_prefetch_step=0 must be >= 1",
        ),
        ({"offload_backend": "prefetch"}, "needs offload_group_size > 0"),
    ],
)
def test_offload_out_of_range_is_refused(fields, text):
    with pytest.raises(SettingError, match=text):
        OffloadConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "backend"),
    [
        ({}, "none"),
        ({"cpu_offload_gb": 1}, "uva"),
        ({"offload_group_size": 2}, "prefetch"),
        ({"offload_group_size": 2, "cpu_offload_gb": 1}, "prefetch"),
        ({"offload_group_size": 2, "cpu_offload_gb": 1, "offload_backend": "uva"}, "uva"),
        ({"cpu_offload_params": frozenset({"mlp"})}, "none"),
    ],
)
def test_backend_is_chosen_as_vllm_chooses_it(fields, backend):
    assert backend == OffloadConfig(**fields).resolved_backend


def test_request_the_backend_never_looks_at_is_named_and_is_no_baseline():
    both = OffloadConfig(offload_group_size=2, cpu_offload_gb=1)
    selectors = OffloadConfig(cpu_offload_params=frozenset({"mlp"}))

    assert ("cpu_offload_gb=1",) == both.ignored_requests
    assert ("cpu_offload_params=mlp",) == selectors.ignored_requests
    assert not Setting(offload=selectors).is_baseline


@pytest.mark.parametrize(
    ("setting", "setting_id"),
    [
        (Setting(), "vX-none-eager"),
        (Setting(runner="v1", enforce_eager=False, multiprocessing=True), "v1-none-graph-mp"),
        (
            Setting(
                runner="v2",
                offload=OffloadConfig(
                    offload_group_size=8, offload_num_in_group=2, pin_memory=False
                ),
            ),
            "v2-prefetch-g8n2s1-pin0-eager",
        ),
        (
            Setting(
                runner="v1",
                offload=OffloadConfig(
                    cpu_offload_gb=0.5, cpu_offload_params=frozenset({"b", "a"}), uva=False
                ),
                faults=("x",),
            ),
            "v1-uva-gb0.5-sel.a+b-uva0-pin1-eager!x",
        ),
        (
            Setting(offload=OffloadConfig(offload_group_size=1, uva=False)),
            "vX-prefetch-g1n1s1-uva0-pin1-eager",
        ),
    ],
)
def test_setting_id_reads_as_documented(setting, setting_id):
    assert setting_id == setting.setting_id


def test_setting_id_tells_engine_arguments_and_environment_apart():
    ids = {
        Setting().setting_id,
        Setting(engine_args={"seed": 1}).setting_id,
        Setting(env={"A": "1"}).setting_id,
        Setting(env={"A": None}).setting_id,
        Setting(engine="vllm").setting_id,
        Setting(python="p").setting_id,
    }

    assert 6 == len(ids)


@pytest.mark.parametrize("name", OWNED_ENV)
def test_variable_with_a_field_of_its_own_is_refused_in_env(name):
    with pytest.raises(SettingError, match=f"env {name} is decided by"):
        Setting(env={name: "1"})


@pytest.mark.parametrize("name", ["enforce_eager", *OffloadConfig.__dataclass_fields__])
def test_argument_with_a_field_of_its_own_is_refused_in_engine_args(name):
    with pytest.raises(SettingError, match=f"engine argument '{name}' has a field"):
        Setting(engine_args={name: 1})


@quick
@given(setting=settings)
def test_baseline_differs_in_offload_and_faults_only(setting):
    baseline = setting.baseline()

    assert baseline.is_baseline
    assert baseline == baseline.baseline()
    assert set(baseline.differing_axes(setting)) <= {"offload", "faults"}


@quick
@given(setting=settings)
def test_engine_sees_each_field_once(setting):
    env, kwargs = setting.engine_env(), setting.engine_kwargs()

    assert {None: None, "v1": "0", "v2": "1"}[setting.runner] == env["VLLM_USE_V2_MODEL_RUNNER"]
    has_own_core = setting.multiprocessing or setting.server
    assert str(int(has_own_core)) == env["VLLM_ENABLE_V1_MULTIPROCESSING"]
    assert setting.enforce_eager is kwargs["enforce_eager"]
    assert not {"pin_memory", "uva"} & set(kwargs)
    assert set(setting.engine_args) <= set(kwargs)
    assert set(setting.env) <= set(env)


def test_off_switches_become_variables_only_when_used():
    off = Setting(offload=OffloadConfig(pin_memory=False, uva=False)).engine_env()

    assert "1" == off["VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"]
    assert "1" == off["VLLM_WEIGHT_OFFLOADING_DISABLE_UVA"]
    assert Setting().engine_env()["VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"] is None


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Setting)])
def test_hash_covers_every_field(name):
    other = {
        "engine": "vllm", "runner": "v1", "offload": OffloadConfig(cpu_offload_gb=1),
        "enforce_eager": False, "multiprocessing": True, "engine_args": {"seed": 1},
        "env": {"A": "1"}, "python": "p", "faults": ("x",), "instruments": ("poison",),
        "server": True, "release": "0.28.0",
    }  # fmt: skip

    changed = dataclasses.replace(Setting(), **{name: other[name]})

    assert Setting().compute_hash() != changed.compute_hash()
    assert (name,) == Setting().differing_axes(changed)


def test_an_unknown_recorder_lists_the_known_ones():
    with pytest.raises(SettingError, match="instruments='order' must be one of ordering, inte"):
        Setting(instruments=("order",))


def test_recorders_do_not_show_in_an_id_unless_they_are_unusual():
    usual = Setting(runner="v2", instruments=("ordering", "integrity"))

    assert Setting(runner="v2").setting_id == usual.setting_id == "v2-none-eager"
    assert (
        "v2-none-eager-with.poison"
        == dataclasses.replace(usual, instruments=("poison",)).setting_id
    )
    assert usual.baseline().instruments == usual.instruments


def test_an_id_says_how_a_model_is_spread():
    def id_of(**args):
        return Setting(runner="v1", engine_args=args).setting_id

    assert "v1-none-eager-pp2" == id_of(pipeline_parallel_size=2)
    assert "v1-none-eager-tp2-pp4" == id_of(tensor_parallel_size=2, pipeline_parallel_size=4)
    both = id_of(pipeline_parallel_size=2, max_num_seqs=4)
    assert both.startswith("v1-none-eager-pp2-x")
    assert len({both, id_of(max_num_seqs=4), id_of(pipeline_parallel_size=1), id_of()}) == 4
