"""Every (layers up to 48, group, num, step): the rule holds, and the wrong rule is flagged."""

import pytest

from harness.core import ModelSpec, OffloadConfig, Setting
from harness.plan import check_waits, expect, refill_order
from harness.plan.all_sizes import check_all_sizes, ring_size, wrap_around

RINGS = [(modules, step) for modules in range(1, 49) for step in range(1, 49)]


def test_no_setting_up_to_48_layers_violates_the_invariant():
    sizes = check_all_sizes(48)

    assert () == sizes.bad_rings
    assert 0 == sizes.num_bad_settings
    assert 48 * 48 * (48 * 49 // 2) == sizes.num_settings == 2_709_504
    assert 49 * 48 == sizes.num_rings
    assert 0 < sizes.num_empty_settings < sizes.num_settings


def test_wrong_rule_is_flagged_exactly_where_step_does_not_divide_a_longer_ring():
    sizes = check_all_sizes(48, wrap_around)

    expected = [(m, s) for m, s in RINGS if m > s and m % s]
    assert expected == list(sizes.bad_rings)
    assert 978 == len(expected)
    assert 0 < sizes.num_bad_settings < sizes.num_settings


def test_ring_size_is_the_one_the_expectation_has():
    layers = {"hidden_size": 2, "num_attention_heads": 1, "intermediate_size": 1, "vocab_size": 1}
    for num_layers in (1, 2, 5, 8):
        model = ModelSpec(
            name="m",
            architecture="LlamaForCausalLM",
            config={**layers, "num_hidden_layers": num_layers},
            path="m",
        )
        for group in range(1, 10):
            for num in range(1, group + 1):
                offload = OffloadConfig(offload_group_size=group, offload_num_in_group=num)
                ring = expect(Setting(offload=offload), model).offloaded_layers
                assert len(ring) == ring_size(num_layers, group, num)


@pytest.mark.parametrize(("wait", "kind"), [("copy_wait", "read"), ("reader_wait", "write")])
def test_either_wait_taken_away_is_seen_in_every_ring(wait, kind):
    for ring in RINGS:
        found = check_waits(*ring, refill_order(*ring), **{wait: False})

        assert found, ring
        assert {kind} == {pair.kind for pair in found}


def test_pair_without_an_order_names_both_modules_and_the_slot():
    first = check_waits(3, 2, refill_order(3, 2), reader_wait=False)[0]

    assert ("write", 0, 2, 0) == (first.kind, first.slot_idx, first.module_idx, first.other_idx)
