"""The heat map: rows are offload settings, columns are model x runner, each cell a verdict mark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.core import CaseResult, Setting

from .cell import CellView
from .order import OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGroup:
    """A model and how many columns it spans."""

    model: str
    span: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One offload setting; `cells[i]` are the cases under column `i`, mostly one."""

    label: str
    cells: tuple[tuple[CellView, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridView:
    """The matrix."""

    groups: tuple[ColumnGroup, ...]
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]


def view_grid(pairs: Sequence[tuple[CaseResult, CellView]]) -> GridView:
    """Lay out the cases that count, in the order they first appear."""
    varying = _varying(result.case.target for result, _ in pairs)
    several_workloads = len({r.case.workload.name for r, _ in pairs}) > 1
    columns: dict[tuple[str, str], None] = {}
    rows: dict[str, dict[tuple[str, str], list[CellView]]] = {}
    for result, cell in pairs:
        setting = result.case.target
        name = _column(setting, varying)
        if several_workloads:
            name = f"{name} {result.case.workload.name}"
        column = (result.case.workload.model.name, name)
        columns.setdefault(column)
        label = cell.row + (_faults(setting) if "faults" in varying else "")
        rows.setdefault(label, {}).setdefault(column, []).append(cell)
    models = list(dict.fromkeys(model for model, _ in columns))
    ordered = [c for model in models for c in sorted(columns) if c[0] == model]
    spans = {model: sum(1 for c in ordered if c[0] == model) for model in models}
    return GridView(
        groups=tuple(ColumnGroup(model=m, span=n) for m, n in spans.items()),
        columns=tuple(name for _, name in ordered),
        rows=tuple(_row(label, by_column, ordered) for label, by_column in rows.items()),
    )


def _row(
    label: str,
    by_column: Mapping[tuple[str, str], list[CellView]],
    ordered: Sequence[tuple[str, str]],
) -> GridRow:
    return GridRow(label=label, cells=tuple(tuple(by_column.get(c, ())) for c in ordered))


def _varying(settings: Iterable[Setting]) -> frozenset[str]:
    """Axes besides runner and offload that take more than one value in this session."""
    listed = list(settings)
    axes = ("enforce_eager", "multiprocessing", "engine", "python", "faults")
    return frozenset(a for a in axes if len({str(getattr(s, a)) for s in listed}) > 1)


def _column(setting: Setting, varying: frozenset[str]) -> str:
    """Runner, and whatever departs from the default where the session varies it."""
    parts = [setting.runner.upper() if setting.runner else "auto"]
    if "engine" in varying:
        parts.insert(0, setting.engine)
    if "python" in varying:
        parts.append((setting.python or OWN).rsplit("/", 1)[-1])
    if not setting.enforce_eager and "enforce_eager" in varying:
        parts.append("graph")
    if setting.multiprocessing and "multiprocessing" in varying:
        parts.append("mp")
    return " ".join(parts)


def _faults(setting: Setting) -> str:
    return f" with {', '.join(setting.faults)}" if setting.faults else ""
