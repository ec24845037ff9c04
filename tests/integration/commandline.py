"""The command line as a user runs it: in a process of its own, or in this one for quick verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def session(self) -> Path:
        """The session's folder, from the JSON document or the line `record  PATH`."""
        if self.out.startswith("{"):
            return Path(self.json["session"])
        lines = [line for line in self.out.splitlines() if line.startswith("record ")]
        return Path(lines[-1].split(maxsplit=1)[1])


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a child that finds this checkout, wherever it is started."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(extra or {})}


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "harness", *map(str, args)]


def run_harness(*args: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Answer:
    """Run `harness ARGS` in a process of its own, and wait."""
    child = subprocess.run(
        command(*args),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=cwd,
        env=environment(env),
    )
    return Answer(child.returncode, child.stdout, child.stderr)


def write_executable(path: Path) -> Path:
    """A file that runs the harness of this checkout, for scripts that want one program."""
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m harness "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path
