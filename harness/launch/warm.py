"""The warm parent: imports an engine, builds nothing, forks a child per request.

`python -m harness.launch.warm ENGINE` reads JSON lines on stdin ({"id", "folder", "env"} or
{"kill", "signal"}) and answers on stdout ({"ready"}, {"id", "pid"}, {"id", "returncode"}).
It ends, with its children, when stdin closes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from .process import kill_group
from .request import LOG_FILE
from .worker import child_main, preload

CHUNK_BYTES = 65536


class WarmServer:
    """Forks children and reports how they end; one thread, woken by stdin and pidfds only."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, int] = {}
        self._rest = b""

    def serve(self) -> None:
        """Answer requests until stdin closes, then end every child."""
        self._selector.register(0, selectors.EVENT_READ)
        self._answer(ready=True)
        is_open = True
        while is_open:
            for event, _ in self._selector.select():
                if event.fd == 0:
                    is_open = self._read()
                else:
                    self._reap(event.fd, event.data)
        for pid in self._children.values():
            kill_group(pid, signal.SIGKILL)

    def _read(self) -> bool:
        chunk = os.read(0, CHUNK_BYTES)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        return bool(chunk)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "kill" in message:
            if message["kill"] in self._children.values():
                kill_group(message["kill"], message["signal"])
            return
        pid = os.fork()
        if pid == 0:
            become_child(Path(message["folder"]), message["env"])
        os.setpgid(pid, pid)
        self._children[message["id"]] = pid
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, message["id"])
        self._answer(id=message["id"], pid=pid)

    def _reap(self, pidfd: int, request_id: int) -> None:
        pid = self._children.pop(request_id)
        kill_group(pid, signal.SIGKILL)  # stragglers, while the number is still theirs
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._answer(id=request_id, returncode=os.waitstatus_to_exitcode(status))

    def _answer(self, **message: object) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()


def become_child(folder: Path, env: Mapping[str, str]) -> None:
    """Turn a fork of the warm parent into the child of one launch; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        close_files()
        path = os.environ.get("PYTHONPATH", "")
        os.environ.clear()
        os.environ.update(env)
        os.environ["PYTHONPATH"] = path  # a wrapper of the interpreter may have added to it
        code = child_main(folder)
    except BaseException:  # the child must never return into the parent's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def close_files() -> None:
    """Close what the warm parent had open; a GPU driver's files stay, its libraries hold them."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):
            if fd > 2 and not os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                os.close(fd)


def main(argv: list[str]) -> int:
    """Import the engine named in `argv`, then serve."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an import prints goes to the log, not between the answers
    preload(argv[0])
    gc.collect()
    gc.freeze()
    WarmServer(answers).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
