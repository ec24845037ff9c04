"""The engine's environment variables: the only module that reads them.

Each attribute reads its variable when it is asked for, until `enable_envs_cache()` freezes all
values; `disable_envs_cache()` goes back to reading. Values other than 0 and 1 are refused.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    VLLM_USE_V2_MODEL_RUNNER: bool | None
    VLLM_ENABLE_V1_MULTIPROCESSING: bool
    VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY: bool
    VLLM_WEIGHT_OFFLOADING_DISABLE_UVA: bool

DEFAULTS: dict[str, bool | None] = {
    "VLLM_USE_V2_MODEL_RUNNER": None,
    "VLLM_ENABLE_V1_MULTIPROCESSING": True,
    "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": False,
    "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA": False,
}
"""Every variable the engine knows, with the value it has when unset."""

_VALUES = {"0": False, "1": True}
_cache: dict[str, bool | None] | None = None


def read_envs() -> dict[str, bool | None]:
    """Return every variable as the engine sees it now, frozen values included.

    Raises:
        ValueError: A variable holds anything but 0 or 1.
    """
    return {name: _read(name) for name in DEFAULTS} if _cache is None else dict(_cache)


def enable_envs_cache() -> None:
    """Freeze all values as they are now; later changes of the environment have no effect.

    Raises:
        ValueError: A variable holds anything but 0 or 1.
    """
    global _cache  # noqa: PLW0603 - the cache is this module's one state
    if _cache is None:
        _cache = read_envs()


def disable_envs_cache() -> None:
    """Forget frozen values: attributes read the environment again."""
    global _cache  # noqa: PLW0603 - the cache is this module's one state
    _cache = None


def is_envs_cache_enabled() -> bool:
    """Tell whether values are frozen."""
    return _cache is not None


def _read(name: str) -> bool | None:
    text = os.environ.get(name)
    if text is None:
        return DEFAULTS[name]
    if text not in _VALUES:
        raise ValueError(f"{name}={text!r} must be 0 or 1 (environment); set it so, or unset it")
    return _VALUES[text]


def __getattr__(name: str) -> bool | None:
    if name not in DEFAULTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _read(name) if _cache is None else _cache[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *DEFAULTS])
