"""The server as a child: its output passed on and kept, its end awaited, its group left empty."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MAX_LINES = 2000
"""Lines of its output that are kept, to say why it ended."""
GRACE_S = 20.0
"""Seconds for the server to end after SIGTERM; then SIGKILL."""
ORPHAN_GRACE_S = 5.0
"""Seconds for what it started to end after it."""


class ServerProcess:
    """A child in this process's group where this process leads one, else in a group of its own.

    The group tells what the server started, also when that has lost its parent.

    Args:
        argv: its command line.
        env: its whole environment.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        leads = os.getpgrp() == os.getpid()
        self._others = frozenset(group_members(os.getpgrp())) if leads else frozenset()
        self._popen = subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=None if leads else 0,
        )
        self.pid = self._popen.pid
        self.group = os.getpgrp() if leads else self.pid
        self._pump = threading.Thread(target=self._pass_on, daemon=True)
        self._pump.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the server's end.

        Returns:
            Whether it has ended.
        """
        return self._popen.returncode is not None or wait_for_end(self.pid, timeout_s)

    def output(self) -> list[str]:
        """The last lines of all its processes."""
        return list(self._lines)

    @property
    def is_killed(self) -> bool:
        """Whether a signal ended the server, so that its last words are not the reason."""
        return (self._popen.poll() or 0) < 0

    def describe_end(self) -> str:
        """Words for how the server stands: running, exit code or signal."""
        returncode = self._popen.poll()
        if returncode is None:
            return "it is running"
        return f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"

    def end(self) -> None:
        """End the server and all that it started; a second call does nothing.

        Raises:
            RuntimeError: a process outlived SIGKILL.
        """
        if not self.wait(0):
            self._popen.terminate()
            if not self.wait(GRACE_S):
                self._popen.kill()
        self._popen.wait()
        left = self._wait_for_rest()
        self._pump.join(ORPHAN_GRACE_S)
        if not self._pump.is_alive() and self._popen.stdout is not None:
            self._popen.stdout.close()
        if left:
            raise RuntimeError(f"processes of the server outlived SIGKILL: {sorted(left)}")

    def _wait_for_rest(self) -> set[int]:
        """Let the rest of the group end, then kill it; returns what is left all the same."""
        for pid in self._rest():
            wait_for_end(pid, ORPHAN_GRACE_S)
        for pid in self._rest():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_end(pid, ORPHAN_GRACE_S)
        return self._rest()

    def _rest(self) -> set[int]:
        return set(group_members(self.group)) - self._others - {os.getpid(), self.pid}

    def _pass_on(self) -> None:
        """Copy the output to this process's own, line by line, and keep its end."""
        assert self._popen.stdout is not None, "it is a pipe"
        for line in self._popen.stdout:
            text = line.decode("utf-8", errors="replace")
            self._lines.append(text.rstrip("\r\n"))
            sys.stdout.write(text)
            sys.stdout.flush()


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Wait until a process has ended, whosever child it is; False on time-out."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))
    finally:
        os.close(pidfd)


def group_members(group: int) -> list[int]:
    """Living processes of a process group; ended ones that nobody has reaped do not count."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(int(folder.name))
    return found
