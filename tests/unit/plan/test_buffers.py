import pytest

from harness.plan import Violation, check_schedule, refill_order, slots

RINGS = [(modules, step) for modules in range(49) for step in range(1, 50)]


def test_no_ring_up_to_48_modules_is_violated_by_the_rule():
    bad = [ring for ring in RINGS if check_schedule(*ring, refill_order(*ring))]

    assert [] == bad


def test_modulo_the_ring_is_flagged_exactly_where_step_does_not_divide_it():
    expected, actual = [], []
    for modules, step in RINGS:
        refill = [(i + step) % modules for i in range(modules)]
        expected.append(modules > step and modules % step != 0)
        actual.append(bool(check_schedule(modules, step, refill)))

    assert expected == actual


def test_refill_keeps_every_slot_with_its_owners():
    for modules, step in RINGS:
        owner, refill = slots(modules, step), refill_order(modules, step)
        assert [owner[i] for i in refill] == list(owner)
        assert sorted(refill) == list(range(modules))


def test_ring_of_8_over_3_slots():
    assert (0, 1, 2, 0, 1, 2, 0, 1) == slots(8, 3)
    assert (3, 4, 5, 6, 7, 2, 0, 1) == refill_order(8, 3)


def test_more_slots_than_modules_refill_each_module_itself():
    assert (0, 1) == slots(2, 5) == refill_order(2, 5)


def test_empty_ring_has_no_slot():
    assert () == slots(0, 3) == refill_order(0, 3)
    assert [] == check_schedule(0, 3, ())


def test_overwritten_module_is_named_before_it_computes_with_its_neighbours_weights():
    first, *rest = check_schedule(4, 3, [3, 0, 1, 2])

    assert Violation(
        kind="overwritten", pass_idx=0, module_idx=1, slot_idx=0, expected=3, actual=0
    ) == first  # fmt: skip
    assert Violation(
        kind="stale", pass_idx=0, module_idx=3, slot_idx=0, expected=3, actual=0
    ) in rest  # fmt: skip


def test_slot_that_is_never_refilled_is_stale_in_the_same_pass():
    (first, *_) = check_schedule(2, 1, [0, 1])

    assert ("stale", 0, 1) == (first.kind, first.pass_idx, first.module_idx)


def test_fault_that_shows_only_in_the_second_pass_is_found():
    # the last module refills itself, so the first finds its slot taken when it comes round
    refill = [1, 1]

    assert [] == check_schedule(2, 1, refill, num_passes=1)
    assert {1, 2} == {v.pass_idx for v in check_schedule(2, 1, refill)}


@pytest.mark.parametrize("refill", [[0], [0, 2], [0, -1], [0, 1, 1]])
def test_rule_that_is_no_map_of_the_ring_is_refused(refill):
    with pytest.raises(ValueError, match="must name a module from 0 to 1"):
        check_schedule(2, 1, refill)


@pytest.mark.parametrize(("modules", "step"), [(-1, 1), (1, 0)])
def test_impossible_ring_is_refused(modules, step):
    with pytest.raises(ValueError, match="must be >= "):
        slots(modules, step)
    with pytest.raises(ValueError, match="must be >= "):
        refill_order(modules, step)
