"""Matrix files: axes, their product, excluded and included cells -> Settings in a stable order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from harness.core import (
    DTYPE_BYTES,
    OWNED_ENV,
    Dtype,
    Json,
    OffloadConfig,
    Runner,
    Setting,
    SettingError,
)
from harness.core.setting import INSTRUMENTS

from .flags import FLAGS, OFFLOAD_FLAGS, unknown_flag
from .nodes import Item, read_document
from .parse import usual_instruments

DEFAULT_MATRIX = Path(__file__).with_name("default_matrix.yaml")

_TOP = (
    "name", "engine", "models", "workload", "dtype", "axes", "exclude", "include", "engine_args",
    "env", "instruments",
)  # fmt: skip
_SWITCHES = ("pin_memory", "uva", "multiprocessing", "enforce_eager")
_AXES = ("runner", "offload", *_SWITCHES)
_BACKENDS = ("none", "uva", "prefetch")

Cell = dict[str, Any]
"""Axis name -> value; that of `offload` is an `_Offload`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What one matrix file asks for."""

    name: str
    models: tuple[str, ...]
    """Model names, as `load_model` takes them."""
    workload: str
    settings: tuple[Setting, ...]
    """Targets, in the file's order, none twice."""
    dtype: Dtype | None = None
    """Dtype for every model; None leaves each its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offload:
    """One entry of the offload axis and where it stands."""

    fields: Mapping[str, Any]
    item: Item


def load_matrix(path: Path | None) -> Matrix:
    """Read a matrix file.

    Args:
        path: the file; None reads the matrix that comes with the package.

    Raises:
        MatrixError: the file is missing or wrong; the text starts with `FILE:LINE:COLUMN:`.
    """
    item = read_document(DEFAULT_MATRIX if path is None else Path(path))
    top = item.mapping(_TOP)
    for name in ("models", "axes"):
        if name not in top:
            raise item.error(f"key {name!r} is missing")
    engine = top["engine"].text() if "engine" in top else "reference"
    shared: dict[str, Any] = {
        "engine": engine,
        "engine_args": _read_engine_args(top.get("engine_args"), engine),
        "env": _read_env(top.get("env")),
        "instruments": _read_instruments(top.get("instruments"), engine),
    }
    settings = [_build(cell, shared, top["axes"]) for cell in _read_axes(top["axes"])]
    if "exclude" in top:
        settings = _exclude(settings, top["exclude"])
    if "include" in top:
        settings += top["include"].sequence(lambda extra: _read_include(extra, shared))
    if not settings:
        raise top["axes"].error("no cell is left; relax exclude, or add axes")
    return Matrix(
        name=top["name"].text() if "name" in top else Path(item.file).stem,
        models=tuple(dict.fromkeys(top["models"].sequence(Item.text))),
        workload=top["workload"].text() if "workload" in top else "default",
        settings=_without_duplicates(settings),
        dtype=cast("Dtype", top["dtype"].text(DTYPE_BYTES)) if "dtype" in top else None,
    )


def _read_axes(item: Item) -> list[Cell]:
    """The product of all axes; the first axis of the file turns slowest."""
    axes = {name: axis.sequence(_reader(name)) for name, axis in item.mapping(_AXES).items()}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _reader(axis: str) -> Callable[[Item], Any]:
    if axis == "runner":
        return _read_runner
    return _read_offload if axis == "offload" else Item.flag


def _read_runner(item: Item) -> Runner | None:
    return None if item.value is None else cast("Runner", item.text(("v1", "v2")))


def _read_offload(item: Item) -> _Offload:
    known = OffloadConfig.__dataclass_fields__
    fields = {name: _read_field(name, field) for name, field in item.mapping(known).items()}
    return _Offload(fields=fields, item=item)


def _read_field(name: str, item: Item) -> Any:
    if name in ("pin_memory", "uva"):
        return item.flag()
    flag = OFFLOAD_FLAGS[name]
    if flag.kind == "list":
        return frozenset(item.sequence(Item.text))
    if flag.kind == "str":
        return item.text(flag.choices)
    return item.whole() if flag.kind == "int" else item.number()


def _build(cell: Cell, shared: Mapping[str, Any], place: Item) -> Setting:
    """Turn one cell into a setting; switches inside the offload entry win over the axes."""
    offload: _Offload | None = cell.get("offload")
    fields: dict[str, Any] = {n: cell[n] for n in ("pin_memory", "uva") if n in cell}
    fields |= offload.fields if offload else {}
    at = offload.item if offload else place
    try:
        config = OffloadConfig(**fields)
    except SettingError as error:
        raise _field_item(at, str(error)).error(str(error)) from None
    rest = {n: cell[n] for n in ("runner", "multiprocessing", "enforce_eager") if n in cell}
    return Setting(**shared, **rest, offload=config)


def _without_duplicates(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Each setting once; without offload, pin memory and UVA decide nothing."""
    plain = [replace(s, offload=OffloadConfig()) if s.offload.is_none else s for s in settings]
    return tuple({setting.compute_hash(): setting for setting in plain}.values())


def _field_item(item: Item, text: str) -> Item:
    """The field of an offload entry that an error text names first, else the entry itself."""
    named = [(text.find(name), field) for name, field in item.mapping().items() if name in text]
    return min(named, key=lambda pair: pair[0])[1] if named else item


def _read_include(item: Item, shared: Mapping[str, Any]) -> Setting:
    keys = item.mapping((*_AXES, "engine_args", "env"))
    cell = {name: _reader(name)(keys[name]) for name in _AXES if name in keys}
    own = {
        "engine_args": _read_engine_args(keys.get("engine_args"), shared["engine"]),
        "env": _read_env(keys.get("env")),
    }
    merged = {**shared, **{name: {**shared[name], **value} for name, value in own.items()}}
    return _build(cell, merged, item)


def _exclude(settings: Sequence[Setting], item: Item) -> list[Setting]:
    """Drop the cells that any entry matches; an entry that matches none is an error."""
    kept = list(settings)
    for wanted, entry in item.sequence(lambda each: (_read_pattern(each), each)):
        matching = [setting for setting in settings if _is_match(setting, wanted)]
        if not matching:
            raise entry.error("this exclude entry matches no cell; correct or remove it")
        kept = [setting for setting in kept if setting not in matching]
    return kept


def _read_pattern(item: Item) -> Cell:
    """Fields of the settings to drop, offload fields flattened in."""
    keys = item.mapping((*_AXES, "offload_backend"))
    pattern: Cell = {}
    if "offload_backend" in keys:
        pattern["resolved_backend"] = keys.pop("offload_backend").text(_BACKENDS)
    pattern |= {name: _reader(name)(value) for name, value in keys.items()}
    if isinstance(offload := pattern.pop("offload", None), _Offload):
        pattern |= offload.fields
    if not pattern:
        raise item.error("an empty exclude entry would drop every cell; name an axis")
    return pattern


def _is_match(setting: Setting, wanted: Cell) -> bool:
    return all(
        getattr(setting if hasattr(setting, name) else setting.offload, name) == value
        for name, value in wanted.items()
    )


def _read_engine_args(item: Item | None, engine: str) -> dict[str, Json]:
    keys = item.mapping() if item else {}
    for name, value in keys.items():
        if name in OFFLOAD_FLAGS or name == "enforce_eager":
            raise value.error(f"engine argument {name!r} belongs under axes")
        if engine == "reference" and (name not in FLAGS or FLAGS[name].refusal):
            raise value.error(FLAGS[name].refusal if name in FLAGS else
                              str(unknown_flag(name, engine=engine)))  # fmt: skip
        _check_engine_arg(name, value, engine)
    return {name: value.json() for name, value in keys.items()}


def _check_engine_arg(name: str, item: Item, engine: str) -> None:
    flag = FLAGS.get(name)
    if flag is not None:
        read: dict[str, Callable[[], object]] = {
            "int": item.whole,
            "float": item.number,
            "str": lambda: item.text(() if engine == "vllm" else flag.choices),
        }
        read[flag.kind]()


def _read_instruments(item: Item | None, engine: str) -> tuple[str, ...]:
    if item is None:
        return usual_instruments(engine)
    if item.value == []:
        return ()
    return tuple(dict.fromkeys(item.sequence(lambda each: each.text(INSTRUMENTS))))


def _read_env(item: Item | None) -> dict[str, str | None]:
    env: dict[str, str | None] = {}
    for name, value in (item.mapping() if item else {}).items():
        if name in OWNED_ENV:
            raise value.error(f"env {name} is decided by an axis; put it under axes")
        if "=" in name or "\0" in name:
            raise value.error(f"env name {name!r} must not hold '='")
        if value.value is not None and not isinstance(value.value, str):
            raise value.error(f"env {name} must be text or null, found {value.shown}; quote it")
        env[name] = value.value
    return env
