"""From a matrix to a plan: which cells, of which models, in which shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.core import Case, Plan, Setting, UsageError, Workload
from harness.launch import engine_supports
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
        faults: planted in every target that they apply to; other cells stay as they are.
        select: keeps a cell, given its anchor and axes; None keeps all.
        shard: `(i, n)`: the i-th of n parts of the selected cells, 1-based.
        controls: adds the null cases and the planted fault.

    Raises:
        UsageError: a model or a fault is not known, or a fault applies to no selected cell.
    """
    settings = [plant(setting, faults) for setting in matrix.settings]
    plans, num_seen = [], 0
    selected: list[Setting] = []
    for name in models or matrix.models:
        model = load_model(name, models_file=models_file, dtype=matrix.dtype)
        workload = load_workload(matrix.workload, model)
        whole = build_plan(settings, [workload], controls=False)
        cells = [p.case for p in whole.cases]
        kept = [c for c in cells if select is None or select(c.anchor, c.axes)]
        first = (shard[0] - 1 - num_seen) % shard[1]
        num_seen += len(kept)
        selected += [cell.target for cell in kept if cell.role == "case"]
        if mine := kept[first :: shard[1]]:
            plans.append(_plan_cells(mine, workload, controls=controls))
    _check_planted(faults, selected)
    return Plan(
        cases=tuple(case for plan in plans for case in plan.cases),
        unsupported=tuple(skipped for plan in plans for skipped in plan.unsupported),
    )


def _plan_cells(cells: Sequence[Case], workload: Workload, *, controls: bool) -> Plan:
    """Plan the given cells and their controls, and no other cell that their settings allow."""
    sides = [side for c in cells for side in (c.baseline, c.target) if c.role == "runner"]
    settings = [*sides, *(c.target for c in cells if c.role == "case")]
    supports = engine_supports(settings[0].engine)
    plan = build_plan(settings, [workload], controls=controls, supports=supports)
    wanted = {cell.case_id for cell in cells}
    return replace(
        plan,
        cases=tuple(
            p for p in plan.cases if p.case.role in ("null", "control") or p.case.case_id in wanted
        ),
    )


def plant(setting: Setting, faults: Sequence[str]) -> Setting:
    """The setting with those faults that change anything under it; a baseline stays one.

    Raises:
        UsageError: a fault is not known.
    """
    from harness.faults.base import FAULTS

    new = [
        name
        for name in dict.fromkeys(faults)
        if FAULTS.get(name).why_not(setting) is None and name not in setting.faults
    ]
    return setting if setting.is_baseline else replace(setting, faults=(*setting.faults, *new))


def _check_planted(faults: Sequence[str], selected: Sequence[Setting]) -> None:
    """Refuse a fault that changes nothing in any selected cell: it would prove nothing."""
    from harness.faults.base import FAULTS

    for name in faults:
        if selected and not any(name in setting.faults for setting in selected):
            reasons = dict.fromkeys(FAULTS.get(name).why_not(each) for each in selected)
            raise UsageError(
                f"fault {name!r} applies to none of the {len(selected)} selected cells: "
                f"{'; '.join(map(str, reasons))}; select others with -k, or see "
                f"`harness faults {name}` for where it applies"
            )


def target_cases(plan: Plan) -> Iterator[Case]:
    """The plan's cells, without null cases and controls."""
    yield from (p.case for p in plan.cases if p.case.role not in ("null", "control"))
