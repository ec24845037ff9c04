"""What the parent concludes when a child has ended: from exit code, signal, files and log."""

from __future__ import annotations

import signal
from dataclasses import replace
from enum import Enum
from pathlib import Path

from harness.core import RecordError, Run, RunStatus
from harness.core.redact import redact_text
from harness.core.runfiles import RUN_FILE, read_run

from .request import LOG_FILE, LaunchRequest

TAIL_LINES = 20
TAIL_BYTES = 64 * 1024


class Ending(Enum):
    """Why a child ended."""

    BY_ITSELF = "by itself"
    DEADLINE = "deadline"
    INTERRUPT = "interrupt"


def conclude_run(
    folder: Path,
    request: LaunchRequest,
    *,
    ending: Ending,
    returncode: int,
    elapsed_s: float,
    deadline_s: float,
) -> Run:
    """Turn what a child left behind into a `Run`.

    Args:
        folder: the run folder.
        request: what the child was asked.
        ending: why it ended.
        returncode: as `subprocess` gives it: negative for a signal.
        elapsed_s: wall seconds of the launch.
        deadline_s: seconds it was given.
    """
    tail = log_tail(folder / LOG_FILE)
    if ending is Ending.INTERRUPT:
        return _ended(request, RunStatus.INTERRUPTED, "stopped by the user", tail, elapsed_s)
    if ending is Ending.DEADLINE:
        text = f"no answer within deadline_s={deadline_s:g}; its process group was ended"
        return _ended(request, RunStatus.HANG, text, tail, elapsed_s)
    run, problem = _read_own(folder, request)
    if run is not None and returncode == 0:
        return run if run.status is RunStatus.OK else replace(run, log_tail=tail)
    if run is not None:
        text = f"{describe_exit(returncode)} after it had written its run"
        return replace(run, status=RunStatus.CRASH, error=text, log_tail=tail)
    if returncode == 0 and problem is not None:
        return _ended(request, RunStatus.CRASH, problem, tail, elapsed_s)
    text = describe_exit(returncode)
    if last := _telling_line(tail):
        text += f": {last}"
    return _ended(request, RunStatus.CRASH, text, tail, elapsed_s)


def describe_exit(returncode: int) -> str:
    """Words for an exit code: `killed by SIGKILL`, `exit code 3`."""
    if returncode < 0:
        try:
            return f"killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"killed by signal {-returncode}"
    return f"exit code {returncode}" + ("" if returncode else ", but it wrote no run")


def log_tail(path: Path) -> tuple[str, ...]:
    """The last lines of a log, secrets redacted; empty when there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return tuple(redact_text(line)[:500] for line in lines[-TAIL_LINES:])


def _read_own(folder: Path, request: LaunchRequest) -> tuple[Run | None, str | None]:
    """The run the child wrote, or why it cannot be used."""
    if not (folder / RUN_FILE).exists():
        return None, "exit code 0, but it wrote no run"
    try:
        run = read_run(folder)
    except RecordError as error:
        return None, f"its run cannot be read: {error}"
    if run.run_id != request.run_id or run.setting != request.setting:
        return None, f"its run is of another setting: run_id={run.run_id!r}"
    return run, None


def _telling_line(tail: tuple[str, ...]) -> str | None:
    """The log line that says most: the last that names an exception, else the last."""
    for line in reversed(tail):
        head = line.split(":", 1)[0].strip()
        if head.endswith(("Error", "Exception", "Interrupt")) and " " not in head:
            return line.strip()
    return tail[-1].strip() if tail else None


def _ended(
    request: LaunchRequest,
    status: RunStatus,
    error: str,
    tail: tuple[str, ...],
    elapsed_s: float,
) -> Run:
    return Run(
        run_id=request.run_id,
        setting=request.setting,
        status=status,
        timings={"total": round(elapsed_s, 6)},
        warm=request.warm,
        error=error,
        log_tail=tail,
    )
