"""Requested against effective: what was asked for, beside what both sides' live objects say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core import CaseResult, Expectation, Json, ProbeSnapshot, Run

from .words import exact_bytes, ranges

NOTHING = "–"  # noqa: RUF001
"""Shown where a side has nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """One thing asked for, and what was found on each side."""

    name: str
    asked: str
    baseline: str
    target: str
    is_ok: bool | None
    """None when nobody judged the row."""


def view_effect(
    result: CaseResult, baseline: Run | None, target: Run | None
) -> tuple[EffectRow, ...]:
    """Rows of live objects: the effect judge's own where it gave them, else from the probes."""
    left, right = _probe(baseline), _probe(target)
    judged = _judged_rows(result)
    if right is None:
        return judged
    known = {row.name.lower() for row in judged}
    own = _probe_rows(result.case.expected, left, right)
    return (*judged, *(row for row in own if row.name.lower() not in known))


def view_config(
    result: CaseResult, baseline: Run | None, target: Run | None
) -> tuple[EffectRow, ...]:
    """Rows of engine arguments: asked for, and what each engine ended up with."""
    left, right = _probe(baseline), _probe(target)
    if right is None:
        return ()
    left_config = left.effective_config if left is not None else {}
    right_config = right.effective_config
    asked = result.case.target.engine_kwargs()
    names = [*asked, *sorted({*left_config, *right_config} - set(asked))]
    told = {row.name for row in _judged_rows(result)}
    return tuple(
        EffectRow(
            name=name,
            asked=show_value(asked.get(name)) if name in asked else NOTHING,
            baseline=show_value(left_config[name]) if name in left_config else NOTHING,
            target=show_value(right_config[name]) if name in right_config else NOTHING,
            is_ok=_as_asked(asked, right_config, name),
        )
        for name in names
        if name not in told
    )


def show_value(value: Json) -> str:
    """A JSON value as a reader would write it: thousands separated, lists joined."""
    if value is None or value == "" or value in ([], {}):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {show_value(v)}" for k, v in value.items())
    return _show_list(value) if isinstance(value, list | tuple) else str(value)


def _show_list(values: Sequence[Json]) -> str:
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return ranges(values)
    return ", ".join(show_value(v) for v in values)


def _probe(run: Run | None) -> ProbeSnapshot | None:
    return run.probe if run is not None else None


def _judged_rows(result: CaseResult) -> tuple[EffectRow, ...]:
    """Rows the effect judge gave as evidence; whatever lacks a name is left out."""
    found = next((f for f in result.findings if f.judge == "effect"), None)
    rows = found.evidence.get("rows") if found is not None else None
    if not isinstance(rows, list | tuple):
        return ()
    unchecked = found.evidence.get("unchecked_arguments") if found is not None else None
    unchecked = unchecked if isinstance(unchecked, Mapping) else {}
    return tuple(
        EffectRow(
            name=str(row["name"]),
            asked=show_value(row.get("asked")),
            baseline=_found(row, "baseline", unchecked),
            target=_found(row, "target", unchecked),
            is_ok=row["ok"] if isinstance(row.get("ok"), bool) else None,
        )
        for row in rows
        if isinstance(row, Mapping) and row.get("name")
    )


def _found(row: Mapping[str, Json], side: str, unchecked: Mapping[str, Json]) -> str:
    """What was found on a side, or that an argument could not be checked there."""
    names = unchecked.get(side)
    if isinstance(names, list | tuple) and row["name"] in names and row.get(side) is None:
        return "not checked"
    return show_value(row.get(side))


def _as_asked(asked: Mapping[str, Json], found: Mapping[str, Json], name: str) -> bool | None:
    """Whether a plain value came out as asked; containers may be spelled otherwise."""
    if name not in asked or name not in found:
        return None
    if not isinstance(asked[name], bool | int | float | str):
        return None
    return bool(asked[name] == found[name])


def _probe_rows(
    expected: Expectation, baseline: ProbeSnapshot | None, target: ProbeSnapshot | None
) -> list[EffectRow]:
    left, right = _facts(baseline), _facts(target)
    asked = {
        "runner": expected.runner or "engine's choice",
        "offloader": {"uva": "UVA"}.get(expected.backend, expected.backend),
        "offloaded layers": ranges(expected.offloaded_layers),
        "offloaded bytes": exact_bytes(expected.offloaded_bytes),
        "buffer pool": _pool(expected.slot_capacity, expected.pool_bytes),
        "pinned host copies": _share(len(expected.offloaded_params), asked=expected.is_pinned),
        "UVA views": _share(len(expected.offloaded_params), asked=expected.is_uva),
    }
    judged = {"runner": expected.runner is not None, "offloader": False}
    return [
        EffectRow(
            name=name,
            asked=wanted,
            baseline=left.get(name, NOTHING),
            target=right.get(name, NOTHING),
            is_ok=_holds(name, wanted, right) if judged.get(name, True) else None,
        )
        for name, wanted in asked.items()
    ]


def _holds(name: str, wanted: str, found: Mapping[str, str]) -> bool | None:
    if name not in found:
        return None
    return found[name] == wanted or (name == "runner" and found[name].startswith(wanted))


def _facts(probe: ProbeSnapshot | None) -> dict[str, str]:
    """What one probe says, in the words the asked column uses."""
    if probe is None:
        return {}
    off = [p for p in probe.params if p.is_offloaded]
    pool = probe.buffer_pool
    facts = {
        "offloader": probe.offloader_class,
        "offloaded layers": ranges(p.layer_idx for p in off if p.layer_idx is not None),
        "offloaded bytes": exact_bytes(probe.offloaded_bytes),
        "buffer pool": _pool(pool.slot_capacity, pool.num_bytes) if pool is not None else "none",
        "pinned host copies": f"{sum(p.is_pinned for p in off)} of {len(off)}" if off else "none",
        "UVA views": f"{sum(p.is_uva for p in off)} of {len(off)}" if off else "none",
    }
    name = probe.runner_class.rpartition(".")[2] or probe.runner_class
    facts["runner"] = f"{probe.runner} ({name})" if probe.runner is not None else name
    return facts


def _pool(slots: int, num_bytes: int) -> str:
    if not slots:
        return "none"
    return f"{slots} {'slot' if slots == 1 else 'slots'}, {exact_bytes(num_bytes)}"


def _share(total: int, *, asked: bool) -> str:
    if not total:
        return "none"
    return f"{total if asked else 0} of {total}"
