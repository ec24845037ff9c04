"""No judge objects to a change that only looks like a fault."""

import pytest

from harness.faults import FAULTS

NAMES = [name for name in FAULTS if FAULTS.get(name).kind == "equivalent"]


@pytest.mark.parametrize("name", NAMES)
def test_equivalent_is_left_in_peace(try_fault, name):
    line = try_fault(name)

    assert line.rows
    assert "" == line.why
