"""From a matrix to a plan: which cells, of which models, in which shard."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from harness.core import Case, Plan, PlannedCase, Setting, UsageError, Waive, Workload
from harness.core.case import JUDGE_NAMES
from harness.launch import engine_supports
from harness.plan import build_plan, release_pairs, sort_out, with_unique_ids
from harness.settings import KnownBad, Matrix, load_model, load_workload, parse_selection

T = TypeVar("T")
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
        UsageError: a model or a fault is not known, a fault applies to no selected cell, or a
            waive to no cell at all.
    """
    settings = [plant(setting, faults) for setting in matrix.settings]
    known_bad = matrix.known_bad if controls else ()
    settings += [each.setting for each in known_bad]
    bad = _must_fail(known_bad)
    plans, num_seen = [], 0
    waives = [(waive, parse_selection(waive.cell)) for waive in matrix.waives]
    unused = set() if faults else {waive.cell for waive in matrix.waives}
    selected: list[Setting] = []
    for name, work in itertools.product(models or matrix.models, matrix.workloads):
        model = load_model(name, models_file=models_file, dtype=matrix.dtype)
        workload = load_workload(work, model)
        cells = [
            planned.case
            for own in _by_engine(settings, lambda setting: setting)
            for planned in build_plan(own, [workload], controls=False).cases
        ]
        pairs = {p.case.case_id: p for p in release_pairs(matrix.settings, [workload])}
        cells += [pair.case for pair in pairs.values()]
        for waive in filter(None, (_waive_of(cell, waives) for cell in cells)):
            unused.discard(waive.cell)
        kept = [c for c in cells if select is None or select(c.anchor, c.axes)]
        first = (shard[0] - 1 - num_seen) % shard[1]
        num_seen += len(kept)
        cases = [c.target for c in kept if c.role == "case"]
        selected += [target for target in cases if target.compute_hash() not in bad]
        plans += _plan_kept(kept[first :: shard[1]], pairs, workload, controls=controls)
    _check_planted(faults, selected)
    for text in [w.cell for w in matrix.waives if w.cell in unused]:
        raise UsageError(f"waive cell={text!r} is no cell's first: correct it, or remove it")
    planned = [_with_waive(_as_control(case, bad), waives) for plan in plans for case in plan.cases]
    return Plan(
        cases=tuple(_join_controls(_without_idle_nulls(planned)) if bad else planned),
        unsupported=tuple(skipped for plan in plans for skipped in plan.unsupported),
    )


def _waive_of(case: Case, waives: Sequence[tuple[Waive, Selector]]) -> Waive | None:
    """The first waive that matches a cell; none of a null case, a control or a planted fault."""
    if case.role in ("null", "control") or case.target.faults:
        return None
    return next((waive for waive, matches in waives if matches(case.anchor, case.axes)), None)


def _with_waive(planned: PlannedCase, waives: Sequence[tuple[Waive, Selector]]) -> PlannedCase:
    waive = _waive_of(planned.case, waives)
    return planned if waive is None else replace(planned, case=replace(planned.case, waive=waive))


def _must_fail(known_bad: Iterable[KnownBad]) -> dict[str, tuple[str, ...]]:
    """Hash of a known-bad cell's setting -> judges that must say FAIL of it."""
    found: dict[str, tuple[str, ...]] = {}
    for each in known_bad:
        key = each.setting.compute_hash()
        found[key] = _union(found.get(key, ()), _judges_of(each))
    return found


def _judges_of(bad: KnownBad) -> tuple[str, ...]:
    """The judges that must say FAIL of a known-bad cell: those it names, else its faults'.

    Raises:
        UsageError: a fault changes nothing in the cell, so that it could never FAIL.
    """
    from harness.faults.base import FAULTS

    asked = {name.removesuffix("-full") for name in bad.setting.instruments}
    found: list[str] = []
    for name in bad.setting.faults:
        fault = FAULTS.get(name)
        if reason := fault.why_not(bad.setting):
            raise UsageError(f"known_bad cell {bad.setting.setting_id}: {name}: {reason}")
        recorded = ("ordering", "integrity")
        if fault.kind == "mutant":
            found += [j for j in fault.killed_by if j not in recorded or j in asked]
    must_fail = bad.must_fail or tuple(dict.fromkeys(found))
    if unknown := [name for name in must_fail if name not in JUDGE_NAMES]:
        known = ", ".join(JUDGE_NAMES)
        raise UsageError(f"must_fail: {unknown[0]!r} is no judge; known: {known}")
    if not must_fail:
        raise UsageError(
            f"known_bad cell {bad.setting.setting_id} can never FAIL: what catches "
            f"{', '.join(bad.setting.faults)} was not asked for; give instruments, or must_fail"
        )
    return must_fail


def _as_control(planned: PlannedCase, bad: Mapping[str, tuple[str, ...]]) -> PlannedCase:
    """A known-bad cell is a control; every other case stays as it is."""
    case = planned.case
    must_fail = bad.get(case.target.compute_hash())
    if must_fail is None or case.role != "case":
        return planned
    case_id = f"control-{case.case_id}"
    return replace(
        planned, case=replace(case, role="control", case_id=case_id, must_fail=must_fail)
    )


def _join_controls(planned: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Controls that compare the same become one, which all the judges of each must object to.

    A known-bad cell may be just what the harness plants by itself.
    """
    joined: dict[tuple[str, str, str], PlannedCase] = {}
    for each in planned:
        runs = (each.case.role, each.baseline_key.key, each.target_key.key)
        first = joined.setdefault(runs, each)
        if first is not each:
            must_fail = _union(first.case.must_fail, each.case.must_fail)
            joined[runs] = replace(first, case=replace(first.case, must_fail=must_fail))
    return with_unique_ids(joined.values())


def _union(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*left, *right)))


def _without_idle_nulls(planned: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Leave out null cases of baselines that serve known-bad cells only: nobody trusts them."""
    compared = [p.case for p in planned if p.case.role not in ("null", "control")]
    used = {side.compute_hash() for c in compared for side in (c.baseline, c.target)}
    return [p for p in planned if p.case.role != "null" or p.case.baseline.compute_hash() in used]


def _by_engine(items: Iterable[T], setting_of: Callable[[T], Setting]) -> list[list[T]]:
    """Items of one engine under one interpreter together, in the order they first occur.

    Each is planned apart: it has its own guards, and its own statement of what it supports.
    """
    groups: dict[tuple[str, str, str | None], list[T]] = {}
    for item in items:
        setting = setting_of(item)
        groups.setdefault((setting.engine, setting.release, setting.python), []).append(item)
    return list(groups.values())


def _plan_kept(
    kept: Sequence[Case], pairs: Mapping[str, PlannedCase], workload: Workload, *, controls: bool
) -> list[Plan]:
    """Plan what one job has of a model: the cells of each engine apart, then pairs of releases.

    Both sides of a pair get the guards of their own release, also where a job has nothing else.
    """
    own = [(cell.target, cell) for cell in kept if cell.role != "release"]
    across = [pairs[cell.case_id] for cell in kept if cell.role == "release"]
    guarded = [(side, None) for p in across for side in (p.case.baseline, p.case.target)]
    plans = [
        _plan_cells(
            [cell for _, cell in mine if cell is not None],
            workload,
            beside=[setting for setting, cell in mine if cell is None],
            controls=controls,
        )
        for mine in _by_engine([*own, *guarded], lambda item: item[0])
    ]
    engines = dict.fromkeys(p.case.target.engine for p in across)
    return plans + [
        sort_out([p for p in across if p.case.target.engine == name], engine_supports(name))
        for name in engines
    ]


def _plan_cells(
    cells: Sequence[Case], workload: Workload, *, beside: Sequence[Setting], controls: bool
) -> Plan:
    """Plan the given cells of one engine and their controls, and no other that they allow.

    Args:
        cells: of one engine under one interpreter.
        workload: what each is asked.
        beside: further settings without offload that need a null case.
        controls: adds the null cases and the planted fault.
    """
    sides = [side for c in cells for side in (c.baseline, c.target) if c.role == "runner"]
    settings = [*sides, *(c.target for c in cells if c.role == "case"), *beside]
    supports = engine_supports(settings[0].engine)
    plan = build_plan(settings, [workload], controls=controls, supports=supports)
    wanted = {_sides(cell): cell for cell in cells}
    return replace(
        plan,
        cases=tuple(
            p if p.case.role in ("null", "control") else replace(p, case=wanted[_sides(p.case)])
            for p in plan.cases
            if p.case.role in ("null", "control") or _sides(p.case) in wanted
        ),
        unsupported=tuple(
            replace(s, case=wanted[_sides(s.case)])
            for s in plan.unsupported
            if _sides(s.case) in wanted
        ),
    )


def _sides(case: Case) -> tuple[str, str, str]:
    """What a cell compares, whichever others it is planned with: its id may depend on them."""
    return (case.role, case.baseline.compute_hash(), case.target.compute_hash())


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


def known_bad_cases(plan: Plan, matrix: Matrix) -> Iterator[Case]:
    """The plan's known-bad cells: the controls that the matrix itself asks for."""
    asked = {each.setting.compute_hash() for each in matrix.known_bad}
    for planned in plan.cases:
        if planned.case.role == "control" and planned.case.target.compute_hash() in asked:
            yield planned.case
