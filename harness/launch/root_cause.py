"""Where an engine only points at its log: the error that its core's process left there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from harness.core import Run, RunStatus
from harness.core.redact import redact_text

POINTER = "root cause"
"""Words with which an engine sends its reader to the log."""
MAX_BYTES = 4 * 1024**2
_CAUSE = re.compile(r"(?:^|\]\s+)((?:\w+\.)*\w*(?:Error|Exception)): (.+)$")


def name_root_cause(run: Run, log: Path) -> Run:
    """The run with the first error of its log in place of one that points there.

    Memory that did not suffice in another process becomes OOM.
    """
    if run.status is not RunStatus.CRASH or POINTER not in (run.error or ""):
        return run
    cause = find_cause(log)
    if cause is None:
        return run
    kind, text = cause
    status = RunStatus.OOM if kind.endswith("OutOfMemoryError") else run.status
    return replace(run, status=status, error=f"{kind} in the engine core's process: {text}")


def find_cause(log: Path) -> tuple[str, str] | None:
    """Name and text of the last error that an engine core logged, else of any; None without one.

    What points at the log itself does not count: the traceback above it does.
    """
    try:
        with log.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    found: list[tuple[bool, tuple[str, str]]] = []
    for line in text.splitlines():
        match = _CAUSE.search(line.rstrip())
        is_note = " WARNING " in line or " INFO " in line
        if match and not is_note and POINTER not in match[2]:
            cause = match[1], redact_text(match[2])[:500]
            found.append((line.startswith(("(EngineCore", "(Worker")), cause))
    of_core = [cause for is_core, cause in found if is_core]
    causes = of_core or [cause for _, cause in found]
    return causes[-1] if causes else None
