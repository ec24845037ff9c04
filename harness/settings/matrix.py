"""Matrix files: axes, their product, excluded and included cells -> Settings in a stable order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from harness.core import (
    DTYPE_BYTES,
    Dtype,
    OffloadConfig,
    Setting,
    SettingError,
    UsageError,
    Waive,
)
from harness.core.setting import ACCELERATE_BACKENDS

from .axes import AXES, ENGINE_ARGS, SETTING_AXES, Cell, OffloadEntry, reader_of
from .engines import (
    Ask,
    EngineEntry,
    parse_interpreters,
    read_engine_args,
    read_entries,
    read_env,
    read_instruments,
    read_names,
)
from .nodes import Item, read_document
from .waives import read_waives

DEFAULT_MATRIX = Path(__file__).with_name("default_matrix.yaml")
DEFAULT_OF_ENGINE = {"accelerate": DEFAULT_MATRIX.with_name("accelerate_matrix.yaml")}
"""Engine -> the matrix that runs when none is named, where the usual one does not fit."""

_TOP = (
    "name", "engine", "engines", "models", "workload", "dtype", "axes", "exclude", "include",
    "engine_args", "env", "instruments", "known_bad", "waives",
)  # fmt: skip
_BACKENDS = ("none", "uva", "prefetch", *ACCELERATE_BACKENDS)
_PLACE = ("engine", "release")
_EXTRA = (*AXES, *_PLACE, "engine_args", "env", "instruments")
"""Keys of a cell beside the product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBad:
    """A cell that must FAIL."""

    setting: Setting
    must_fail: tuple[str, ...] = ()
    """Judges that must object; empty leaves it to the fault's own entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What one matrix file asks for."""

    name: str
    models: tuple[str, ...]
    """Model names, as `load_model` takes them."""
    workloads: tuple[str, ...]
    """Workload names, as `load_workload` takes them."""
    settings: tuple[Setting, ...]
    """Targets, in the file's order, none twice."""
    dtype: Dtype | None = None
    """Dtype for every model; None leaves each its own."""
    known_bad: tuple[KnownBad, ...] = ()
    """Controls: cells with a planted fault, which must FAIL."""
    waives: tuple[Waive, ...] = ()
    """Cells that are red for a known reason; the first that matches a cell is its own."""


def load_matrix(
    path: Path | None,
    *,
    engine: str | None = None,
    pythons: Sequence[str] = (),
    ask: Ask | None = None,
) -> Matrix:
    """Read a matrix file.

    Args:
        path: the file; None reads the matrix that comes with the package.
        engine: replaces the file's engines.
        pythons: interpreters of that engine, as `LABEL=PATH` or `PATH`; without `engine`, of the
            one engine that the file names.
        ask: gives the label of an interpreter that has none.

    Raises:
        MatrixError: the file is missing or wrong; the text starts with `FILE:LINE:COLUMN:`.
        UsageError: `pythons` cannot be read, or all of them lead nowhere.
    """
    item = read_document(DEFAULT_OF_ENGINE.get(engine or "", DEFAULT_MATRIX) if path is None
                         else Path(path))  # fmt: skip
    top = item.mapping(_TOP)
    for name in ("models", "axes"):
        if name not in top:
            raise item.error(f"key {name!r} is missing")
    is_replaced = bool(engine or pythons)
    entries = _choose_entries(top, engine, pythons, ask)
    cells = _read_axes(top["axes"])
    shared = [_shared(top, entry) for entry in entries]
    settings = [_build(cell, one, top["axes"]) for one in shared for cell in cells]
    if "exclude" in top:
        settings = _exclude(settings, top["exclude"], is_replaced=is_replaced)
    if "include" in top:
        for extra in top["include"].sequence(lambda each: each):
            settings += _read_include(extra, shared, is_replaced=is_replaced)
    bad: list[KnownBad] = []
    for extra in top["known_bad"].sequence(lambda each: each) if "known_bad" in top else ():
        bad += _read_known_bad(extra, shared, is_replaced=is_replaced)
    if not settings:
        raise top["axes"].error("no cell is left; relax exclude, or add axes")
    order = {(entry.name, entry.release): idx for idx, entry in enumerate(entries)}
    return Matrix(
        name=top["name"].text() if "name" in top else Path(item.file).stem,
        models=tuple(dict.fromkeys(top["models"].sequence(Item.text))),
        workloads=_read_workloads(top["workload"]) if "workload" in top else ("default",),
        settings=_without_duplicates(sorted(settings, key=lambda s: order[s.engine, s.release])),
        dtype=cast("Dtype", top["dtype"].text(DTYPE_BYTES)) if "dtype" in top else None,
        known_bad=tuple(bad),
        waives=read_waives(top["waives"]) if "waives" in top else (),
    )


def _read_workloads(item: Item) -> tuple[str, ...]:
    """One name, or a list of names."""
    is_list = isinstance(item.value, list)
    names = item.sequence(Item.text) if is_list else [item.text()]
    return tuple(dict.fromkeys(names))


def _choose_entries(
    top: Mapping[str, Item], engine: str | None, pythons: Sequence[str], ask: Ask | None
) -> tuple[EngineEntry, ...]:
    """The engines to run, in the order of their releases."""
    if "engine" in top and "engines" in top:
        raise top["engines"].error("engines and engine exclude each other; give one")
    if engine or (pythons and "engines" not in top):
        name = engine or (top["engine"].text() if "engine" in top else "reference")
        return parse_interpreters(name, pythons, ask=ask)
    if "engines" not in top:
        return (EngineEntry(name=top["engine"].text() if "engine" in top else "reference"),)
    if not pythons:
        return read_entries(top["engines"], ask=ask)
    names = read_names(top["engines"])
    if len(names) > 1:
        raise UsageError(
            f"--python {pythons[0]!r}: of which engine? the matrix has {', '.join(names)}; "
            "give --engine too"
        )
    return parse_interpreters(names[0], pythons, ask=ask)


def _shared(top: Mapping[str, Item], entry: EngineEntry) -> dict[str, Any]:
    """What every setting of one engine entry has; its own arguments win over the file's."""
    return {
        "engine": entry.name,
        "release": entry.release,
        "python": entry.python,
        "engine_args": {
            **read_engine_args(top.get("engine_args"), entry.name), **entry.engine_args
        },
        "env": {**read_env(top.get("env")), **entry.env},
        "instruments": read_instruments(top.get("instruments"), entry.name),
    }  # fmt: skip


def _read_axes(item: Item) -> list[Cell]:
    """The product of all axes; the first axis of the file turns slowest."""
    given = item.mapping((*AXES, ENGINE_ARGS))
    axes = {name: axis.sequence(reader_of(name)) for name, axis in given.items()}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _build(cell: Cell, shared: Mapping[str, Any], place: Item) -> Setting:
    """Turn one cell into a setting; switches inside the offload entry win over the axes."""
    offload: OffloadEntry | None = cell.get("offload")
    fields: dict[str, Any] = {n: cell[n] for n in ("pin_memory", "uva") if n in cell}
    fields |= offload.fields if offload else {}
    at = offload.item if offload else place
    try:
        config = OffloadConfig(**fields)
    except SettingError as error:
        raise _field_item(at, str(error)).error(str(error)) from None
    rest = {n: cell[n] for n in SETTING_AXES if n in cell}
    own = read_engine_args(cell.get(ENGINE_ARGS), shared["engine"])
    rest[ENGINE_ARGS] = {**shared[ENGINE_ARGS], **own}
    try:
        return Setting(**{**shared, **rest, "offload": config})
    except SettingError as error:
        raise place.error(str(error)) from None


def _without_duplicates(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Each setting once; without offload, pin memory and UVA decide nothing."""
    plain = [replace(s, offload=OffloadConfig()) if s.offload.is_none else s for s in settings]
    return tuple({setting.compute_hash(): setting for setting in plain}.values())


def _field_item(item: Item, text: str) -> Item:
    """The field of an offload entry that an error text names first, else the entry itself."""
    named = [(text.find(name), field) for name, field in item.mapping().items() if name in text]
    return min(named, key=lambda pair: pair[0])[1] if named else item


def _read_known_bad(
    item: Item, shared: Sequence[Mapping[str, Any]], *, is_replaced: bool
) -> list[KnownBad]:
    """One cell that must FAIL, for every engine or for those that the entry names."""
    keys = item.mapping((*_EXTRA, "faults", "must_fail"))
    if "faults" not in keys:
        raise item.error("a known_bad entry needs faults: what is planted in it")
    faults = tuple(keys["faults"].sequence(Item.text))
    must_fail = tuple(keys["must_fail"].sequence(Item.text)) if "must_fail" in keys else ()
    cells = _read_include(item, shared, is_replaced=is_replaced, also=("faults", "must_fail"))
    return [KnownBad(setting=replace(s, faults=faults), must_fail=must_fail) for s in cells]


def _read_include(
    item: Item,
    shared: Sequence[Mapping[str, Any]],
    *,
    is_replaced: bool,
    also: Sequence[str] = (),
) -> list[Setting]:
    """One more cell for every engine, or for those that the entry names."""
    keys = item.mapping((*_EXTRA, *also))
    cell = {name: reader_of(name)(keys[name]) for name in AXES if name in keys}
    wanted = {name: keys[name].text() for name in _PLACE if name in keys}
    chosen = [one for one in shared if all(one[n] == value for n, value in wanted.items())]
    if not chosen and not is_replaced:
        raise item.error(f"this include entry names no engine of the matrix: {wanted}")
    found = []
    for one in chosen:
        own = {
            "engine_args": read_engine_args(keys.get("engine_args"), one["engine"]),
            "env": read_env(keys.get("env")),
        }
        merged = {**one, **{name: {**one[name], **value} for name, value in own.items()}}
        if "instruments" in keys:
            merged["instruments"] = read_instruments(keys["instruments"], one["engine"])
        found.append(_build(cell, merged, item))
    return found


def _exclude(settings: Sequence[Setting], item: Item, *, is_replaced: bool) -> list[Setting]:
    """Drop the cells that any entry matches; an entry that matches none is an error.

    Not where the command line replaced the engines and the entry is about one of them.
    """
    kept = list(settings)
    for wanted, entry in item.sequence(lambda each: (_read_pattern(each), each)):
        matching = [setting for setting in settings if _is_match(setting, wanted)]
        if not matching and not (is_replaced and any(name in wanted for name in _PLACE)):
            raise entry.error("this exclude entry matches no cell; correct or remove it")
        kept = [setting for setting in kept if setting not in matching]
    return kept


def _read_pattern(item: Item) -> Cell:
    """Fields of the settings to drop, offload fields flattened in."""
    keys = item.mapping((*AXES, *_PLACE, "offload_backend"))
    pattern: Cell = {name: keys.pop(name).text() for name in _PLACE if name in keys}
    if "offload_backend" in keys:
        pattern["resolved_backend"] = keys.pop("offload_backend").text(_BACKENDS)
    pattern |= {name: reader_of(name)(value) for name, value in keys.items()}
    if isinstance(offload := pattern.pop("offload", None), OffloadEntry):
        pattern |= offload.fields
    if not pattern:
        raise item.error("an empty exclude entry would drop every cell; name an axis")
    return pattern


def _is_match(setting: Setting, wanted: Cell) -> bool:
    return all(
        getattr(setting if hasattr(setting, name) else setting.offload, name) == value
        for name, value in wanted.items()
    )
