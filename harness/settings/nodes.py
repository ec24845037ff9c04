"""YAML nodes with their place in the file: typed reading, each error as `FILE:LINE:COLUMN:`."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from harness.core import Json, MatrixError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One YAML node and the file it stands in."""

    file: str
    node: yaml.Node

    def error(self, text: str) -> MatrixError:
        """An error at this node's place."""
        mark = self.node.start_mark
        return MatrixError(f"{self.file}:{mark.line + 1}:{mark.column + 1}: {text}")

    @property
    def value(self) -> Json:
        """Everything below this node as plain data."""
        try:
            return yaml.SafeLoader("").construct_object(self.node, deep=True)
        except yaml.MarkedYAMLError as error:
            raise _located(self.file, error) from None
        except ValueError as error:  # written as a date that no calendar has
            given = getattr(self.node, "value", "")
            raise self.error(f"{given!r} is no value: {error}; quote it if it is text") from None

    def json(self) -> Json:
        """Read data that JSON can hold: no dates, no infinities, text keys only."""
        found = self.value
        try:
            is_json = json.loads(json.dumps(found, allow_nan=False)) == found
        except (TypeError, ValueError):
            is_json = False
        if not is_json:
            raise self.error(f"expected plain JSON data, found {found!r:.60}; quote it")
        return found

    @property
    def shown(self) -> str:
        """What was found here, for error texts."""
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        return "a list" if isinstance(self.node, yaml.SequenceNode) else f"{self.value!r}"

    def mapping(
        self, known: Collection[str] | None = None, *, takes_empty_key: bool = False
    ) -> dict[str, Item]:
        """Read a mapping with text keys; given `known`, any other key is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"expected a mapping, found {self.shown}")
        items: dict[str, Item] = {}
        for key_node, value_node in self.node.value:
            key = Item(file=self.file, node=key_node)
            name = "" if takes_empty_key and key.value == "" else key.text()
            if name in items:
                raise key.error(f"key {name!r} is given twice")
            if known is not None and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise key.error(f"unknown key {name!r}. Known: {', '.join(known)}.{hint}")
            items[name] = Item(file=self.file, node=value_node)
        return items

    def sequence(self, read: Callable[[Item], T]) -> list[T]:
        """Read a list with at least one entry, each by `read`."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"expected a list, found {self.shown}")
        if not self.node.value:
            raise self.error("expected a list with at least one entry, found none")
        return [read(Item(file=self.file, node=node)) for node in self.node.value]

    def text(self, choices: Collection[str] = ()) -> str:
        """Read text; given `choices`, one of them."""
        found = self.value if isinstance(self.node, yaml.ScalarNode) else None
        if not isinstance(found, str) or not found:
            raise self.error(f"expected text, found {self.shown}")
        if choices and found not in choices:
            raise self.error(f"expected one of {', '.join(choices)}, found {found!r}")
        return found

    def flag(self) -> bool:
        """Read true or false."""
        found = self.value
        if not isinstance(found, bool):
            raise self.error(f"expected true or false, found {self.shown}")
        return found

    def whole(self) -> int:
        """Read a whole number."""
        found = self.value
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.error(f"expected a whole number, found {self.shown}")
        return found

    def number(self) -> float:
        """Read a finite number."""
        found = self.value
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if not is_number or not math.isfinite(found):
            raise self.error(f"expected a finite number, found {self.shown}")
        return float(found)


def read_document(path: Path) -> Item:
    """Read a YAML file's single document.

    Raises:
        MatrixError: the file is missing, not text, empty, or no YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MatrixError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None
    except OSError as error:
        raise MatrixError(
            f"cannot read matrix file {str(path)!r}: {(error.strerror or 'error').lower()}"
        ) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _located(str(path), error) from None
    except RecursionError:
        raise MatrixError(f"{path}: not YAML: nested too deeply") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise MatrixError(f"{path}:{line}:{column}: {error.reason}") from None
    if node is None:
        raise MatrixError(f"{path}:1:1: the file is empty; expected a mapping")
    return Item(file=str(path), node=node)


def _located(file: str, error: yaml.MarkedYAMLError) -> MatrixError:
    mark = error.problem_mark or error.context_mark
    place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    context = f"{error.context}: " if error.context else ""
    return MatrixError(f"{file}{place}: not YAML: {context}{error.problem}")
