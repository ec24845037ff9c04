"""Text into settings: matrix files, engine arguments, selections, model and workload names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .matrix import KnownBad, Matrix, load_matrix
    from .models import list_models, load_model
    from .parse import parse_engine_args
    from .select import parse_selection
    from .workloads import load_workload

_HOMES = {
    "KnownBad": "matrix",
    "Matrix": "matrix",
    "list_models": "models",
    "load_matrix": "matrix",
    "load_model": "models",
    "load_workload": "workloads",
    "parse_engine_args": "parse",
    "parse_selection": "select",
}

__all__ = [
    "KnownBad",
    "Matrix",
    "list_models",
    "load_matrix",
    "load_model",
    "load_workload",
    "parse_engine_args",
    "parse_selection",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'harness.settings' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)
