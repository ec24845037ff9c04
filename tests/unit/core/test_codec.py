import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import harness.core
from harness.core import (
    BufferPoolInfo,
    OffloadConfig,
    RecordError,
    Run,
    Setting,
    Step,
    Verdict,
    canonical_json,
    decode,
    encode,
)
from tests.strategies import CORE_TYPES, settings

quick = hypothesis_settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_every_core_dataclass_has_a_strategy():
    found = {
        getattr(harness.core, name)
        for name in harness.core.__all__
        if dataclasses.is_dataclass(getattr(harness.core, name))
    }

    assert found == set(CORE_TYPES)


@pytest.mark.parametrize("cls", CORE_TYPES, ids=lambda cls: cls.__name__)
@quick
@given(data=st.data())
def test_encode_then_decode_through_json_gives_an_equal_value(cls, data):
    value = data.draw(CORE_TYPES[cls])

    assert value == decode(cls, json.loads(json.dumps(encode(value))))


@quick
@given(setting=settings)
def test_canonical_json_does_not_depend_on_the_order_of_keys(setting):
    turned = dataclasses.replace(
        setting,
        engine_args=dict(reversed(setting.engine_args.items())),
        env=dict(reversed(setting.env.items())),
    )

    assert canonical_json(setting) == canonical_json(turned)
    assert setting.compute_hash() == turned.compute_hash()


def test_unknown_key_is_refused_and_named():
    with pytest.raises(RecordError, match=r"Setting\.offload: unknown key 'gb'; known: offload_b"):
        decode(Setting, {"offload": {"gb": 1}})


def test_missing_key_is_refused_and_named():
    with pytest.raises(RecordError, match="Run: missing key 'run_id'"):
        decode(Run, {"setting": {}, "status": "ok"})


@pytest.mark.parametrize(
    ("cls", "data", "wanted"),
    [
        (Setting, {"runner": "v3"}, r"Setting\.runner: expected one of .*found 'v3'"),
        (Setting, {"enforce_eager": 1}, r"Setting\.enforce_eager: expected bool, found 1"),
        (Setting, {"faults": "x"}, r"Setting\.faults: expected a list, found 'x'"),
        (Setting, {"env": []}, r"Setting\.env: expected an object, found \[\]"),
        (OffloadConfig, {"offload_group_size": True}, "expected int, found True"),
        (OffloadConfig, {"cpu_offload_gb": "1"}, "expected number, found '1'"),
        (OffloadConfig, [], r"OffloadConfig: expected an object, found \[\]"),
        (Verdict, "GOOD", "'GOOD' is not a Verdict"),
    ],
)
def test_value_of_another_type_is_refused_with_its_path(cls, data, wanted):
    with pytest.raises(RecordError, match=wanted):
        decode(cls, data)


def test_number_without_fraction_becomes_a_float_where_one_is_wanted():
    assert 1.0 == decode(OffloadConfig, {"cpu_offload_gb": 1}).cpu_offload_gb


def test_layer_indices_stay_numbers_through_json():
    pool = BufferPoolInfo(slot_capacity=2, num_bytes=8, slots={10: 0, 2: 1})

    assert {"10": 0, "2": 1} == encode(pool)["slots"]
    assert pool == decode(BufferPoolInfo, encode(pool))


def test_sets_are_written_sorted():
    config = OffloadConfig(offload_params=frozenset({"down_proj", "a", "gate_up_proj"}))

    assert ["a", "down_proj", "gate_up_proj"] == encode(config)["offload_params"]


def test_value_without_json_form_is_refused():
    with pytest.raises(TypeError, match="no JSON form for object"):
        encode(Step(args={"x": object()}))
