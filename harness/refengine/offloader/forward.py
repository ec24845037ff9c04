"""Putting code around a module's forward, and taking it away again, without reference cycles."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

from torch import nn

Forward = Callable[..., Any]


def replace_forward(
    module: nn.Module, make_forward: Callable[[Forward], Forward]
) -> Callable[[], None]:
    """Give this one module another forward, made from the one it had.

    The module must not be kept alive by its own forward (its memory would then be freed at some
    later garbage collection only), so all references to it here are weak.

    Args:
        module: The module to change.
        make_forward: Takes the forward so far, returns the new one.

    Returns:
        A function that puts the old forward back; no effect once the module is gone.
    """
    previous = cast("Forward | None", module.__dict__.get("forward"))
    module_ref = weakref.ref(module)
    plain: Forward = type(module).forward

    def call_plain(*args: Any, **kwargs: Any) -> Any:
        return plain(module_ref(), *args, **kwargs)

    def restore() -> None:
        living = module_ref()
        if living is None:
            return
        if previous is None:
            living.__dict__.pop("forward", None)
        else:
            living.__dict__["forward"] = previous

    module.__dict__["forward"] = make_forward(previous or call_plain)
    return restore
