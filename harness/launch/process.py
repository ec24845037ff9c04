"""A child process and its group: start, wait with a deadline, end; nothing of what it runs.

Waiting is on a pidfd or an event, never by polling. A group is ended while its leader is not yet
reaped, so that its number cannot have passed to another process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Child(Protocol):
    """A running child, cold or warm."""

    pid: int
    """Also its process group and session."""

    def wait(self, timeout_s: float | None) -> int | None:
        """Wait for the end; the return code (negative for a signal), or None on time-out.

        Raises:
            ChildLostError: whoever had to report the end is gone.
        """

    def send(self, signum: int) -> None:
        """Send a signal to the whole group; nothing happens when it has ended."""


class ChildLostError(Exception):
    """Nobody can tell any more how this child ended."""


class NotStartedError(Exception):
    """A child did not come to be.

    Args:
        text: one line.
        is_absent: there is no such interpreter, or it is none that can be started.
    """

    def __init__(self, text: str, *, is_absent: bool) -> None:
        super().__init__(text)
        self.is_absent = is_absent


class ColdChild:
    """A child with an interpreter of its own."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._lock = threading.Lock()

    def wait(self, timeout_s: float | None) -> int | None:
        """See `Child.wait`; by one thread at a time."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        if not wait_for_exit(self.pid, timeout_s):
            return None
        with self._lock:
            kill_group(self.pid, signal.SIGKILL)
            return self._popen.wait()

    def send(self, signum: int) -> None:
        """See `Child.send`."""
        with self._lock:
            if self._popen.returncode is None:
                kill_group(self.pid, signum)


def kill_group(pid: int, signum: int) -> None:
    """Send `signum` to the process group led by `pid`, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def wait_for_exit(pid: int, timeout_s: float | None) -> bool:
    """Wait until a child of this process has ended, leaving it unreaped; False on time-out."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else max(0, timeout_s) * 1000))
    finally:
        os.close(pidfd)


def end_child(child: Child, *, grace_s: float) -> int | None:
    """End a child's group: SIGTERM, then SIGKILL once the leader ended or `grace_s` passed.

    Returns:
        Its return code; None if even SIGKILL did not end it in time.
    """
    child.send(signal.SIGTERM)
    returncode = child.wait(grace_s)
    if returncode is None:
        child.send(signal.SIGKILL)
        returncode = child.wait(grace_s)
    return returncode
