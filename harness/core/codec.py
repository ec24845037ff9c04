"""Dataclass <-> plain JSON data, driven by type hints; strict about unknown and missing keys.

Knows nothing of any particular type: every core noun goes through these two functions.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .errors import RecordError

Json = Any
"""Plain JSON data: None, bool, int, float, str, list and str-keyed dict of these."""

SCHEMA_VERSION = 1
"""Version of every file this package writes; a reader refuses any other."""

T = TypeVar("T")


def encode(value: object) -> Json:
    """Turn a core type (or a container of them) into plain JSON data.

    Sets become sorted lists, tuples become lists, enums their values.

    Raises:
        TypeError: `value` holds something that has no JSON form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")


def decode(cls: type[T], data: Json, where: str = "") -> T:
    """Build `cls` from what `encode` produced.

    Args:
        cls: the type to build (a dataclass, or any annotation the core types use).
        data: plain JSON data.
        where: path of `data` in the document, for error texts.

    Raises:
        RecordError: a key is unknown or missing, or a value has the wrong type.
    """
    return cast("T", _decode(cls, data, where or getattr(cls, "__name__", str(cls))))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _decode(hint: Any, data: Json, where: str) -> Any:  # noqa: PLR0911 - one a kind
    if hint is Any or hint is object:
        return data
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(args, data, where)
    if origin is Literal:
        return _expect(data in args, data, where, f"one of {args}")
    if origin is tuple:
        return _decode_tuple(args, data, where)
    if origin is frozenset:
        _expect(isinstance(data, list), data, where, "a list")
        return frozenset(_decode(args[0], item, f"{where}[]") for item in data)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(data, dict), data, where, "an object")
        return {
            (int(k) if args[0] is int else k): _decode(args[1], v, f"{where}.{k}")
            for k, v in data.items()
        }
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(cast("type", hint), data, where)
    return _decode_scalar(hint, data, where)


def _decode_union(args: tuple[Any, ...], data: Json, where: str) -> Any:
    if data is None and type(None) in args:
        return None
    errors = []
    for arg in args:
        if arg is type(None):
            continue
        try:
            return _decode(arg, data, where)
        except RecordError as error:
            errors.append(str(error))
    raise RecordError(errors[0] if errors else f"{where}: {data!r} is not allowed")


def _decode_tuple(args: tuple[Any, ...], data: Json, where: str) -> tuple[Any, ...]:
    _expect(isinstance(data, list), data, where, "a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    _expect(len(data) == len(args), data, where, f"{len(args)} items")
    return tuple(_decode(a, item, where) for a, item in zip(args, data, strict=True))


def _decode_dataclass(cls: type, data: Json, where: str) -> Any:
    _expect(isinstance(data, dict), data, where, "an object")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if unknown := sorted(set(data) - set(fields)):
        raise RecordError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(fields)}")
    kwargs = {k: _decode(_hints(cls)[k], v, f"{where}.{k}") for k, v in data.items()}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING
        if name not in data and required and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{where}: missing key {name!r}")
    return cls(**kwargs)


def _decode_scalar(hint: Any, data: Json, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            raise RecordError(f"{where}: {data!r} is not a {hint.__name__}") from None
    if hint is float:
        _expect(isinstance(data, int | float) and not isinstance(data, bool), data, where, "number")
        return float(data)
    if hint is int and isinstance(data, bool):
        return _expect(False, data, where, "int")
    return _expect(isinstance(data, hint), data, where, getattr(hint, "__name__", str(hint)))


def _expect(ok: bool, data: Json, where: str, wanted: str) -> Json:
    if not ok:
        raise RecordError(f"{where}: expected {wanted}, found {data!r:.80}")
    return data


def canonical_json(value: object) -> str:
    """One fixed text for a value: sorted keys, no spaces; the basis of every hash."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"))
