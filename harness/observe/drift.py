"""Reading what may have moved: a missing internal is noted by name, and reading goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harness.engines.base import InternalMovedError

S = TypeVar("S")
T = TypeVar("T")


class Drift:
    """Collects the names of internals that were not where an adapter looks."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def read(self, call: Callable[[], S], otherwise: T) -> S | T:
        """What `call` reads; `otherwise`, with its name noted, if an internal is gone."""
        try:
            return call()
        except InternalMovedError as error:
            name = str(error)
        except AttributeError as error:
            owner = error.obj if isinstance(error.obj, type) else type(error.obj)
            name = f"{owner.__name__}.{error.name}" if error.name else str(error)
        if name not in self.names:
            self.names.append(name)
        return otherwise
