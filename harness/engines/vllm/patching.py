"""Replacing vLLM's methods in memory; one that is gone is named, never passed over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from harness.engines.base import InternalMovedError


def find_method(owner: Any, name: str) -> Callable[..., Any]:
    """`owner.name`.

    Raises:
        InternalMovedError: there is no such name.
    """
    if not hasattr(owner, name):
        raise InternalMovedError(f"{owner.__name__}.{name}")
    method: Callable[..., Any] = getattr(owner, name)
    return method


def do_after(owner: Any, name: str, then: Callable[..., object]) -> Callable[..., Any]:
    """Let `then` be called after each call of `owner.name`, with the same arguments.

    Returns:
        What stands in the method's place.

    Raises:
        InternalMovedError: there is no such method.
    """
    plain = find_method(owner, name)

    @functools.wraps(plain)
    def both(*args: Any, **named: Any) -> Any:
        result = plain(*args, **named)
        then(*args, **named)
        return result

    setattr(owner, name, both)
    return both
