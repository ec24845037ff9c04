"""Replacing one name in an engine; a name that is gone is an error, never a silent no-op."""

from __future__ import annotations

from harness.engines.base import InternalMovedError


def replace_name(owner: object, name: str, value: object) -> None:
    """Set `owner.name`, which must exist.

    Args:
        owner: a module or a class.
        name: the attribute to replace.
        value: what to put there.

    Raises:
        InternalMovedError: there is no such name.
    """
    if not hasattr(owner, name):
        raise InternalMovedError(f"{getattr(owner, '__name__', owner)}.{name}")
    setattr(owner, name, value)
