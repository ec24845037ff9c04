"""A comparison that would prove nothing is refused, although every token is equal."""

import pytest

from harness.triage.faulty_tests import FAULTY_TESTS


@pytest.mark.parametrize("name", [test.name for test in FAULTY_TESTS if not test.needs])
def test_faulty_test_is_refused(try_fault, name):
    line = try_fault(name)

    (row,) = line.rows
    assert "" == line.why
    assert row.plain_passes, "a plain paired test would have passed it"
