"""From a matrix to a plan: which cells, of which models, in which shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.core import Case, Plan
from harness.plan import build_plan
from harness.settings import Matrix, load_model, load_workload

Selector = Callable[[str, Mapping[str, str]], bool]
"""(anchor, axes) -> keep this cell?"""


def plan_matrix(
    matrix: Matrix,
    *,
    models: Sequence[str] = (),
    models_file: Path | None = None,
    faults: Sequence[str] = (),
    select: Selector | None = None,
    shard: tuple[int, int] = (1, 1),
    controls: bool = True,
) -> Plan:
    """Turn a matrix into a plan: every selected cell, its controls, each unique run once.

    Args:
        matrix: what to run.
        models: names that replace the matrix's own.
        models_file: another models.yaml.
        faults: planted in every target.
        select: keeps a cell, given its anchor and axes; None keeps all.
        shard: `(i, n)`: the i-th of n parts of the selected cells, 1-based.
        controls: adds the null cases and the planted fault.

    Raises:
        UsageError: a model or a fault is not known.
    """
    from harness.faults.base import FAULTS

    for fault in faults:
        FAULTS.check(fault)
    plans, num_seen = [], 0
    for name in models or matrix.models:
        model = load_model(name, models_file=models_file, dtype=matrix.dtype)
        workload = load_workload(matrix.workload, model)
        whole = build_plan(matrix.settings, [workload], faults=faults, controls=False)
        cells = [p.case for p in whole.cases if p.case.role == "case"]
        kept = [c for c in cells if select is None or select(c.anchor, c.axes)]
        first = (shard[0] - 1 - num_seen) % shard[1]
        num_seen += len(kept)
        mine = [replace(c.target, faults=()) for c in kept[first :: shard[1]]]
        if mine:
            plans.append(build_plan(mine, [workload], faults=faults, controls=controls))
    return Plan(
        cases=tuple(case for plan in plans for case in plan.cases),
        unsupported=tuple(skipped for plan in plans for skipped in plan.unsupported),
    )


def target_cases(plan: Plan) -> Iterator[Case]:
    """The plan's cells, without null cases and controls."""
    yield from (p.case for p in plan.cases if p.case.role not in ("null", "control"))
