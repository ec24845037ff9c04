"""Release x runner x offload: one table for each engine, and since when each row is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.core import CaseResult, Run, Setting
from harness.core.spread import name_spread

from .cell import CellView
from .changes import ChangeRow, view_changes
from .history import Seen, row_key, say_change, say_since, verdict_rows
from .labels import row_label
from .order import OWN, matrix_order, order_releases, release_of
from .words import EMULATION, count, is_emulation, listing

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRow(Generic[T]):
    """One offload setting under one runner, in every release."""

    offload: str
    span: int
    """Rows that share the offload label; 0 in all but the first of them."""
    runner: str
    """Runner and whatever else tells rows of one offload apart."""
    cells: tuple[tuple[T, ...], ...]
    """`cells[i]` are the cases under release `i`, mostly one."""
    since: str
    tone: str
    """Verdict name whose colour `since` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTable(Generic[T]):
    """One engine."""

    engine: str
    emulation: str
    """What emulation means, where this engine is one."""
    releases: tuple[str, ...]
    rows: tuple[ReleaseRow[T], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFact:
    """What ran of one engine and release."""

    name: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasesView:
    """The page's part on releases."""

    tables: tuple[ReleaseTable[CellView], ...]
    engines: tuple[EngineFact, ...]
    changes: tuple[tuple[str, tuple[str, ...], tuple[ChangeRow, ...]], ...]
    """Engine, its releases, and the configuration that is not the same in all of them."""


def view_releases(
    pairs: Sequence[tuple[CaseResult, CellView]], runs: Mapping[str, Run]
) -> ReleasesView:
    """Lay out the cases that count, engine by engine."""
    results = [result for result, _ in pairs]
    order = order_releases(results)
    changes = ((e, r, view_changes(e, r, runs.values())) for e, r in order.items() if len(r) > 1)
    return ReleasesView(
        tables=lay_out(pairs),
        engines=tuple(_fact(e, r, runs.values()) for e, all_ in order.items() for r in all_),
        changes=tuple(change for change in changes if change[2]),
    )


def lay_out(pairs: Sequence[tuple[CaseResult, T]]) -> tuple[ReleaseTable[T], ...]:
    """Tables of whatever stands for each result; results that do not count are left out."""
    counting = sorted((p for p in pairs if p[0].counts), key=lambda p: matrix_order(p[0]))
    results = [result for result, _ in counting]
    seen = verdict_rows(results)
    return tuple(
        ReleaseTable(
            engine=engine,
            emulation=EMULATION if is_emulation(engine) else "",
            releases=releases,
            rows=tuple(_rows([p for p in counting if row_key(p[0])[0] == engine], releases, seen)),
        )
        for engine, releases in order_releases(results).items()
    )


def name_engines(results: Iterable[CaseResult]) -> str:
    """`vllm 0.26.0, 0.28.0 and 0.32.0; accelerate 1.15.0`."""
    named = []
    for engine, releases in order_releases(list(results)).items():
        labels = [short_label(r) for r in releases if r != OWN]
        text = " and ".join(filter(None, [", ".join(labels[:-1]), *labels[-1:]]))
        named.append(f"{engine} {text}".strip())
    return "; ".join(named)


def short_label(release: str) -> str:
    """A label, or the last parts of an interpreter's path."""
    return "/".join(release.split("/")[-3:]) if "/" in release else release


def _rows(
    pairs: Sequence[tuple[CaseResult, T]],
    releases: Sequence[str],
    seen: Mapping[tuple[str, str], tuple[Seen, ...]],
) -> Iterable[ReleaseRow[T]]:
    groups: dict[str, dict[tuple[str, str], list[tuple[CaseResult, T]]]] = {}
    varying = _varying([result for result, _ in pairs])
    usual = _usual_instruments([result for result, _ in pairs])
    for result, item in pairs:
        label = row_label(result) + _faults(result.case.target)
        groups.setdefault(label, {}).setdefault(row_key(result), []).append((result, item))
    for label, rows in groups.items():
        span = len(rows)
        for key, members in rows.items():
            first = members[0][0]
            role = first.case.role
            yield ReleaseRow(
                offload=label,
                span=span,
                runner=_runner(first, varying, usual),
                cells=tuple(_under(release, members) for release in releases),
                since=say_change(seen[key]) if role == "release" else say_since(seen[key]),
                tone=next((v for _, v in reversed(seen[key]) if v), "ERROR"),
            )
            span = 0


def _under(release: str, members: Sequence[tuple[CaseResult, T]]) -> tuple[T, ...]:
    return tuple(item for result, item in members if release_of(result.case.target) == release)


def _varying(results: Sequence[CaseResult]) -> frozenset[str]:
    """What takes more than one value among an engine's cells, so that a row must name it."""
    axes = ("enforce_eager", "multiprocessing", "server", "engine_args", "env")
    values = {a: {str(getattr(r.case.target, a)) for r in results} for a in axes}
    values["model"] = {r.case.workload.model.name for r in results}
    values["workload"] = {r.case.workload.name for r in results}
    return frozenset(axis for axis, found in values.items() if len(found) > 1)


def _usual_instruments(results: Sequence[CaseResult]) -> tuple[str, ...]:
    """Those of most cells, which no row needs to name."""
    counts = Counter(result.case.target.instruments for result in results)
    return counts.most_common(1)[0][0] if counts else ()


def _runner(result: CaseResult, varying: frozenset[str], usual: tuple[str, ...]) -> str:
    """`V1`, `V2 graph mp`; the model, the workload and further arguments where they vary."""
    setting, workload = result.case.target, result.case.workload
    runner = setting.runner.upper() if setting.runner else "auto"
    parts = [] if result.case.role == "runner" else [runner]
    if "enforce_eager" in varying:
        parts.append("eager" if setting.enforce_eager else "graph")
    if setting.server and "server" in varying:
        parts.append("server")
    elif setting.multiprocessing and "multiprocessing" in varying:
        parts.append("mp")
    spread, args = name_spread(setting.engine_args)
    parts += spread if "engine_args" in varying else []
    for axis, given in (("engine_args", args), ("env", setting.env)):
        parts += [f"{name}={value}" for name, value in given.items() if axis in varying]
    if setting.instruments != usual:
        parts.append(f"with {'+'.join(setting.instruments) or 'no recorder'}")
    parts += [workload.model.name] if "model" in varying else []
    parts += [workload.name] if "workload" in varying else []
    return " ".join(parts)


def _faults(setting: Setting) -> str:
    return f" with {', '.join(setting.faults)}" if setting.faults else ""


def _fact(engine: str, release: str, runs: Iterable[Run]) -> EngineFact:
    """Version as probed, and the interpreter that was used, of one engine and release."""
    own = [r for r in runs if r.setting.engine == engine and release_of(r.setting) == release]
    hosts = [r.host for r in own if r.host is not None]
    parts = (
        ("version", {r.probe.engine_version for r in own if r.probe is not None}),
        ("Python", {h.python for h in hosts}),
        ("torch", {h.torch for h in hosts if h.torch}),
    )
    words = [f"{what} {listing(sorted(found))}" for what, found in parts if found]
    name = engine if release == OWN else f"{engine} {short_label(release)}"
    state = f"{count(len(own), 'launch', 'launches')}, none answered"
    return EngineFact(name=name, words=", ".join(words) or state)
