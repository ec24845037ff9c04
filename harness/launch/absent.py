"""Interpreters that cannot be started, or lack the engine: found out once, not once a launch."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Mapping

from harness.core import Setting
from harness.core.engine_names import VLLM

from .classify import describe_absent, describe_unstarted

PACKAGES = {**dict.fromkeys(VLLM, ("vllm",)), "accelerate": ("transformers", "accelerate")}
"""Engine -> packages that its interpreter must have; looked up there, not imported."""
TIMEOUT_S = 30.0

_LOOK = """\
import importlib.util, sys
print(next((name for name in sys.argv[1:] if importlib.util.find_spec(name) is None), ""))
"""

_OF_INTERPRETER = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.ENOEXEC,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)
"""What is wrong with a file that cannot be started, now and later; any other errno may pass."""

_Place = tuple[str, str, str | None]


class Absences:
    """Why no launch can come through, by engine, release and interpreter. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[_Place, str | None] = {}

    def find(self, setting: Setting, env: Mapping[str, str]) -> str | None:
        """The one line that holds for every launch of this engine in this interpreter.

        Asked of a child when the place is new; None where nothing is known against it.

        Args:
            setting: names the engine and the interpreter.
            env: the whole environment of a child that runs it.
        """
        place = _place(setting)
        with self._lock:
            if place not in self._reasons:
                self._reasons[place] = _look(setting, env)
            return self._reasons[place]

    def note(self, setting: Setting, reason: str) -> None:
        """Keep what a launch itself has found out."""
        with self._lock:
            self._reasons[_place(setting)] = reason


def is_absent(error: OSError, python: str) -> bool:
    """Whether `error` says of the interpreter itself that it can never be started.

    A machine short of processes, memory or files says nothing of it, nor does another file.

    Args:
        error: of starting a child.
        python: the interpreter that was to run it.
    """
    return error.errno in _OF_INTERPRETER and error.filename == python


def _place(setting: Setting) -> _Place:
    return (setting.engine, setting.release, setting.python)


def _look(setting: Setting, env: Mapping[str, str]) -> str | None:
    """A child looks for the engine's packages; one that answers anything else is no evidence."""
    packages = PACKAGES.get(setting.engine, ())
    if not packages:
        return None
    python = setting.python or sys.executable
    try:
        child = subprocess.run(
            [python, "-c", _LOOK, *packages],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env=dict(env),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        absent = is_absent(error, python)
        return describe_unstarted(setting, error, is_absent=True) if absent else None
    missing = child.stdout.strip()
    return describe_absent(setting, missing) if missing in packages else None
