"""Every defect of the catalogue that can run is caught, on every runner and mode it applies to."""

import pytest

from harness.faults import FAULTS

MUTANTS = [f for f in map(FAULTS.get, FAULTS) if f.kind == "mutant" and "reference" in f.engines]


@pytest.mark.parametrize("name", [fault.name for fault in MUTANTS if not fault.needs])
def test_fault_is_killed(try_fault, name):
    line = try_fault(name)

    assert line.rows
    assert "" == line.why
