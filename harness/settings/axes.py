"""One cell of a matrix: which axes there are, and how a value on each of them is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from harness.core import OffloadConfig, Runner

from .flags import OFFLOAD_FLAGS
from .nodes import Item

SWITCHES = ("pin_memory", "uva", "multiprocessing", "server", "enforce_eager")
AXES = ("runner", "offload", *SWITCHES)
ENGINE_ARGS = "engine_args"
"""An axis too: each value is laid over the matrix's own; which are known depends on the engine."""
SETTING_AXES = ("runner", "multiprocessing", "server", "enforce_eager")

Cell = dict[str, Any]
"""Axis name -> value; that of `offload` is an `OffloadEntry`, that of engine_args an `Item`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadEntry:
    """One entry of the offload axis and where it stands."""

    fields: Mapping[str, Any]
    item: Item


def reader_of(axis: str) -> Callable[[Item], Any]:
    """What reads a value on an axis."""
    if axis == "runner":
        return _read_runner
    if axis == ENGINE_ARGS:
        return lambda item: item
    return _read_offload if axis == "offload" else Item.flag


def _read_runner(item: Item) -> Runner | None:
    return None if item.value is None else cast("Runner", item.text(("v1", "v2")))


def _read_offload(item: Item) -> OffloadEntry:
    known = OffloadConfig.__dataclass_fields__
    fields = {name: _read_field(name, field) for name, field in item.mapping(known).items()}
    return OffloadEntry(fields=fields, item=item)


def _read_field(name: str, item: Item) -> Any:
    if name in ("pin_memory", "uva"):
        return item.flag()
    flag = OFFLOAD_FLAGS[name]
    if flag.kind == "map":
        places = item.mapping(takes_empty_key=True)
        return {module: place.text() for module, place in places.items()}
    if flag.kind == "list":
        return frozenset(item.sequence(Item.text))
    if flag.kind == "str":
        return item.text(flag.choices)
    return item.whole() if flag.kind == "int" else item.number()
