"""The launcher's end of a warm parent: starts it, asks for forks, hears how children end."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .classify import log_tail
from .process import ChildLostError, kill_group, wait_for_exit

CLOSE_GRACE_S = 5.0
READY_TIMEOUT_S = 180.0
FORK_TIMEOUT_S = 60.0


class WarmChild:
    """A child forked from the warm parent; see `process.Child`."""

    def __init__(self, parent: WarmParent, request_id: int) -> None:
        self._parent = parent
        self.request_id = request_id
        self.pid = 0
        self.is_started = threading.Event()
        self.has_ended = threading.Event()
        self.returncode: int | None = None

    def wait(self, timeout_s: float | None) -> int | None:
        """See `Child.wait`."""
        if not self.has_ended.wait(timeout_s):
            return None
        if self.returncode is None:
            if self.pid:
                kill_group(self.pid, signal.SIGKILL)
            raise ChildLostError(self._parent.describe_death())
        return self.returncode

    def send(self, signum: int) -> None:
        """See `Child.send`."""
        if not self.has_ended.is_set():
            self._parent.tell({"kill": self.pid, "signal": int(signum)})


class WarmParent:
    """One warm parent process for one engine under one interpreter. Thread-safe."""

    def __init__(
        self,
        python: str,
        engine: str,
        env: Mapping[str, str],
        log: Path,
        *,
        timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._log = log
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._children: dict[int, WarmChild] = {}
        self._is_dead = False
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                [python, "-m", "harness.launch.warm", engine],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen, name="warm-parent", daemon=True)
        self._reader.start()
        if not self._is_ready():
            kill_group(self.pid, signal.SIGKILL)
            self.close()
            raise ChildLostError(self.describe_death())

    def fork(self, folder: Path, env: Mapping[str, str]) -> WarmChild:
        """Have a child forked for `folder`; returns once it is running.

        Raises:
            ChildLostError: the warm parent is dead.
        """
        with self._lock:
            child = WarmChild(self, next(self._ids))
            self._children[child.request_id] = child
            if self._is_dead:
                raise ChildLostError(self.describe_death())
        self.tell({"id": child.request_id, "folder": str(folder), "env": dict(env)})
        if not child.is_started.wait(FORK_TIMEOUT_S) or not child.pid:
            raise ChildLostError(self.describe_death())
        return child

    def _is_ready(self) -> bool:
        try:
            return self._ready.get(timeout=self._timeout_s)
        except queue.Empty:
            return False

    def tell(self, message: Mapping[str, object]) -> None:
        """Send one message; a dead parent is noticed by the reader, not here."""
        assert self._popen.stdin is not None
        with self._lock:
            try:
                self._popen.stdin.write(json.dumps(message).encode() + b"\n")
                self._popen.stdin.flush()
            except (BrokenPipeError, ValueError):
                return

    def describe_death(self) -> str:
        """One line: that it is gone, and the last it said."""
        tail = log_tail(self._log)
        return f"the warm parent (pid {self.pid}) is gone" + (f": {tail[-1]}" if tail else "")

    def close(self) -> None:
        """End the warm parent; it ends whatever children it still has."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        if self._popen.returncode is None and not wait_for_exit(self.pid, CLOSE_GRACE_S):
            kill_group(self.pid, signal.SIGKILL)
        self._reader.join()
        self._popen.wait()
        self._popen.stdout.close()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            message = _read_answer(line)
            if message is None:
                continue
            if "ready" in message:
                self._ready.put(True)
                continue
            child = self._children[message["id"]]
            if "pid" in message:
                child.pid = message["pid"]
                child.is_started.set()
            else:
                child.returncode = message["returncode"]
                del self._children[message["id"]]
                child.has_ended.set()
        self._ready.put(False)
        with self._lock:
            self._is_dead = True
            orphans = list(self._children.values())
        for child in orphans:
            child.has_ended.set()
            child.is_started.set()


def _read_answer(line: bytes) -> dict[str, Any] | None:
    """One answer; None for what an interpreter's wrapper prints before it starts Python."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
