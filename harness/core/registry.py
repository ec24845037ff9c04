"""A name -> lazy factory table, used by engines, probes, judges, faults and renderers."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from .errors import UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names mapped to `"module:attribute"` strings that are imported on first use."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._targets: dict[str, str | T] = {}

    def register(self, name: str, target: str | T) -> None:
        """Add `name`; `target` is the object or `"module:attribute"`.

        Raises:
            ValueError: `name` is taken.
        """
        if name in self._targets:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._targets[name] = target

    def get(self, name: str) -> T:
        """Return the object called `name`, importing its module when needed.

        Raises:
            UsageError: no such name; the text lists the known ones and the nearest.
        """
        self.check(name)
        target = self._targets[name]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = cast("T", getattr(importlib.import_module(module), attribute))
            self._targets[name] = target
        return target

    def check(self, name: str) -> None:
        """Import nothing; only refuse an unknown name.

        Raises:
            UsageError: no such name; the text lists the known ones and the nearest.
        """
        if name not in self._targets:
            near = difflib.get_close_matches(name, self._targets, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"Unknown {self.kind} {name!r}. Known: {', '.join(sorted(self._targets))}.{hint}"
            )

    def names(self) -> list[str]:
        """Every registered name, in order of registration."""
        return list(self._targets)

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __contains__(self, name: object) -> bool:
        return name in self._targets
