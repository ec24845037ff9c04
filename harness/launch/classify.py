"""What the parent concludes when a child has ended: from exit code, signal, files and log."""

from __future__ import annotations

import re
import signal
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path

from harness.core import RecordError, Run, RunStatus, Setting
from harness.core.redact import redact_text
from harness.core.runfiles import RUN_FILE, read_run

from .request import LOG_FILE, LaunchRequest
from .root_cause import name_root_cause

TAIL_LINES = 20
TAIL_BYTES = 64 * 1024

_IMPORT_ERROR = re.compile(r"(?:ModuleNotFound|Import)Error(?: in [a-z ]+)?: (?P<text>.+)")
_MISSING = re.compile(r"No module named '([^']+)'")
_ELSEWHERE = "or name another interpreter with --python"


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
        run = name_root_cause(run, folder / LOG_FILE)
        status, text = _name_missing(request, run.status, run.error or "")
        failed = replace(run, status=status, error=text, log_tail=tail)
        return run if run.status is RunStatus.OK else failed
    if run is not None:
        text = f"{describe_exit(returncode)} after it had written its run"
        return replace(run, status=RunStatus.CRASH, error=text, log_tail=tail)
    if returncode == 0 and problem is not None:
        return _ended(request, RunStatus.CRASH, problem, tail, elapsed_s)
    status, text = RunStatus.CRASH, describe_exit(returncode)
    if last := _telling_line(tail):
        status, text = _name_missing(request, status, last, f"{text}: {last}")
    return _ended(request, status, text, tail, elapsed_s)


def conclude_unstarted(
    folder: Path, request: LaunchRequest, status: RunStatus, error: str, elapsed_s: float
) -> Run:
    """The run of a child that was not started: its one line is all there is to say.

    Args:
        folder: the run folder; its log gets the line.
        request: what the child would have been asked.
        status: ABSENT where the engine or interpreter is not there, CRASH otherwise.
        error: from `describe_unstarted` or `describe_absent`.
        elapsed_s: wall seconds of the launch.
    """
    with (folder / LOG_FILE).open("a", encoding="utf-8") as log:
        log.write(f"harness: {error}\n")
    return _ended(request, status, error, log_tail(folder / LOG_FILE), elapsed_s)


def describe_absent(setting: Setting, package: str) -> str:
    """Words for an engine whose interpreter lacks one of its packages."""
    python = setting.python or sys.executable
    return (
        f"engine {setting.engine!r} is not installed in {python}: No module named {package!r}; "
        f"install it there, {_ELSEWHERE}"
    )


def describe_unstarted(setting: Setting, error: OSError, *, is_absent: bool) -> str:
    """Why a child was not started: what was asked, what was found, what to do.

    Args:
        setting: names engine and interpreter.
        error: of starting it.
        is_absent: no launch under this interpreter can be started; else only this one was not.
    """
    python = setting.python or sys.executable
    release = f" of release {setting.release!r}" if setting.release else ""
    if not is_absent:
        found = str(error) if error.filename else (error.strerror or str(error)).lower()
        return (
            f"engine {setting.engine!r}{release}: this launch of python={python!r} was not "
            f"started: {found}; let the machine do less meanwhile, or lower --jobs"
        )
    if Path(python).exists():
        found = (error.strerror or str(error)).lower()
    else:
        found = "there is no such file"
        above = next((p for p in Path(python).parents if p.exists()), Path("/"))
        if above != Path(python).parent:
            found += f", nor a folder {above / Path(python).relative_to(above).parts[0]}"
    return (
        f"engine {setting.engine!r}{release}: python={python!r} cannot be started: {found}; "
        "name an interpreter that can, with --python or in the matrix"
    )


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


def _name_missing(
    request: LaunchRequest, status: RunStatus, error: str, usual: str = ""
) -> tuple[RunStatus, str]:
    """Name interpreter and package where an engine could not be imported; else the usual text.

    ABSENT where it is a whole package that no launch can do without.
    """
    found = _IMPORT_ERROR.match(error)
    if found is None or "'harness" in found["text"]:
        return status, usual or error
    engine, python = request.setting.engine, request.setting.python or sys.executable
    package = _MISSING.search(found["text"])
    if package is None:
        what, to_do = "cannot be imported in", "repair it there"
    elif package[1].split(".")[0] in (engine.split("-")[0], "torch", "transformers"):
        what, to_do = "is not installed in", "install it there"
        status = status if "." in package[1] else RunStatus.ABSENT
    else:
        what, to_do = "lacks a package in", f"install {package[1].split('.')[0]} there"
    return status, f"engine {engine!r} {what} {python}: {found['text']}; {to_do}, {_ELSEWHERE}"


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
