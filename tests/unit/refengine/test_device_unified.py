"""Unified memory and pinned rounding: what counts against the device, and who says so."""

import pytest
import torch

from harness.refengine.config import ConfigError, EngineConfig
from harness.refengine.device import OutOfDeviceMemoryError, SimulatedDevice, get_device


def unified(capacity=100, **options):
    return SimulatedDevice(capacity_bytes=capacity, unified_memory=True, **options)


def take(device, count, space="device"):
    return device.empty((count,), torch.uint8, space=space)


def test_pinned_bytes_count_against_a_unified_device_and_pageable_ones_do_not():
    device = unified()
    kept = [take(device, 60), take(device, 40, "pinned"), take(device, 500, "host")]

    assert device.memory_stats()["counted"] == 100
    for space in ("device", "pinned"):
        with pytest.raises(OutOfDeviceMemoryError) as error:
            take(device, 1, space)
        text = str(error.value)
        assert "in use 100 of capacity 100 bytes (pinned=40, weights=60)" in text
        assert "pinned host bytes count against the device; do not pin (pin_memory: false" in text
        assert "\n" not in text
    kept.pop(1)
    take(device, 40)
    assert device.memory_stats()["counted"] == 60


def test_pinned_bytes_do_not_count_elsewhere():
    device = SimulatedDevice(capacity_bytes=100)
    kept = [take(device, 100), take(device, 500, "pinned")]

    assert device.memory_stats()["counted"] == kept[0].nbytes
    with pytest.raises(OutOfDeviceMemoryError, match="offload more weights"):
        take(device, 1)


def test_a_view_of_pageable_bytes_counts_once_and_as_long_as_they_live():
    device = unified()
    host = take(device, 60, "host")
    views = [device.uva_view(host), device.uva_view(host)]

    assert device.memory_stats()["counted"] == 60
    with pytest.raises(OutOfDeviceMemoryError, match=r"viewed host=60.*uva: false"):
        take(device, 41)
    del host
    views.clear()
    assert device.memory_stats()["counted"] == 0
    large = take(device, 101, "host")
    with pytest.raises(OutOfDeviceMemoryError, match=r"asked for 101 bytes .*space='host'"):
        device.uva_view(large)
    assert device.memory_stats()["counted"] == 0


def test_a_view_of_pinned_bytes_counts_them_no_second_time():
    device = unified()
    pinned = take(device, 60, "pinned")
    view = device.uva_view(pinned)

    assert device.memory_stats()["counted"] == 60
    assert view.nbytes == 60


@pytest.mark.parametrize(("asked", "taken"), [(0, 0), (1, 1), (3, 4), (64, 64), (65, 128)])
def test_pinned_allocations_round_up_to_a_power_of_two(asked, taken):
    device = SimulatedDevice(pinned_granularity="power_of_two")
    kept = [take(device, asked, space) for space in ("pinned", "device", "host")]
    stats = device.memory_stats()

    assert (asked, taken) == (stats["pinned"]["current"], stats["pinned"]["taken"])
    assert (asked, asked) == (stats["device"]["current"], stats["host"]["current"])
    kept.clear()
    assert device.memory_stats()["pinned"]["taken"] == 0


def test_rounding_counts_against_a_unified_device():
    device = unified(pinned_granularity="power_of_two")
    kept = [take(device, 33, "pinned")]

    assert device.memory_stats()["counted"] == 64
    with pytest.raises(OutOfDeviceMemoryError, match="asked for 33 bytes"):
        take(device, 33, "pinned")
    kept.append(take(device, 32, "pinned"))
    assert device.memory_stats()["counted"] == 96


def test_unknown_options_and_options_of_real_hardware_are_refused(tmp_path):
    with pytest.raises(ValueError, match="pinned_granularity='odd' must be one of exact"):
        SimulatedDevice(pinned_granularity="odd")
    for options in ({"unified_memory": True}, {"pinned_granularity": "power_of_two"}):
        with pytest.raises(ValueError, match="cannot be chosen on device='cuda'"):
            get_device("cuda", **options)
        with pytest.raises(ConfigError, match="device='simulated' only"):
            EngineConfig(model=str(tmp_path), device="cuda", **options)
    with pytest.raises(ConfigError, match="unified_memory='yes' must be True or False"):
        EngineConfig(model=str(tmp_path), unified_memory="yes")
    with pytest.raises(ConfigError, match="pinned_granularity='odd' must be one of"):
        EngineConfig(model=str(tmp_path), pinned_granularity="odd")
