"""Tells whether weight offload in an LLM inference engine is right, and stays right.

The public names load lazily: importing this package imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.api import (
        check_logprobs_close,
        check_outputs_equal,
        compare_all_settings,
        compare_two_settings,
        load_run,
    )
    from harness.core import CaseResult, ComparisonError, OffloadConfig, Setting, Verdict

_HOMES = {
    "CaseResult": "harness.core",
    "ComparisonError": "harness.core",
    "OffloadConfig": "harness.core",
    "Setting": "harness.core",
    "Verdict": "harness.core",
    "check_logprobs_close": "harness.api",
    "check_outputs_equal": "harness.api",
    "compare_all_settings": "harness.api",
    "compare_two_settings": "harness.api",
    "load_run": "harness.api",
}

__version__ = "0.1.0"
__all__ = [
    "CaseResult",
    "ComparisonError",
    "OffloadConfig",
    "Setting",
    "Verdict",
    "check_logprobs_close",
    "check_outputs_equal",
    "compare_all_settings",
    "compare_two_settings",
    "load_run",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
