"""What a child finds in its environment: an allow-list of the caller's, and the setting's own.

Nothing else of the caller's environment reaches a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from harness.core import Setting

INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
    "HARNESS_CACHE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "COVERAGE_PROCESS_START",
)
"""Names a child may inherit; everything else of the caller's stays with the caller."""

KEPT_CACHES = "HARNESS_ENGINE_CACHE"
"""Variable that names a folder for engines' caches which are to outlive a session."""

READ_AT_START = "HARNESS_"
"""Prefix of variables that nothing reads while it loads: these may differ between a warm parent and
the child forked from it. Of vLLM's that holds only for those that a setting's own fields decide."""


def child_environment(
    setting: Setting, parent: Mapping[str, str] | None = None, *, num_threads: int = 1
) -> dict[str, str]:
    """The whole environment of the child that runs `setting`.

    Args:
        setting: decides its own variables; one it sets to None is absent.
        parent: the caller's variables; None reads this process's.
        num_threads: compute threads of the child.

    Returns:
        Name -> value; nothing is to be added to it by inheritance.
    """
    source = os.environ if parent is None else parent
    env = {name: source[name] for name in INHERITED if name in source}
    env.update(
        OMP_NUM_THREADS=str(num_threads),
        MKL_NUM_THREADS=str(num_threads),
        PYTHONCOERCECLOCALE="0",
        PYTHONHASHSEED="0",
        PYTHONSAFEPATH="1",
        PYTHONUNBUFFERED="1",
        PYTHONUTF8="1",
    )
    for name, value in setting.engine_env().items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def kept_caches(parent: Mapping[str, str] | None = None) -> str | None:
    """The folder that the caller names for engines' caches; None where it names none.

    Args:
        parent: the caller's variables; None reads this process's.
    """
    return (os.environ if parent is None else parent).get(KEPT_CACHES) or None


class WarmKey(NamedTuple):
    """What decides a warm parent: launches that differ in it cannot be forked from one process."""

    engine: str
    python: str | None
    env: tuple[tuple[str, str | None], ...]
    """Variables that a library reads while it loads."""


def warm_key(setting: Setting) -> WarmKey:
    """The warm parent that a child for `setting` can be forked from."""
    early = {n: v for n, v in setting.env.items() if not n.startswith(READ_AT_START)}
    return WarmKey(setting.engine, setting.python, tuple(sorted(early.items())))


def can_fork_warm(setting: Setting) -> bool:
    """Whether a child forked from a warm parent sees what a cold one would.

    Not on a device that cannot be forked, nor where the engine is a server of its own.
    """
    return setting.engine_args.get("device", "simulated") == "simulated" and not setting.server
