"""What a child is asked to do: request.json, written by the launcher, read by the worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from harness.core import SCHEMA_VERSION, Setting, Workload, decode, encode
from harness.core.runfiles import check_schema_version, read_json

REQUEST_FILE = "request.json"
LOG_FILE = "log.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One launch, complete: the child needs nothing else but its environment."""

    run_id: str
    setting: Setting
    workload: Workload
    num_threads: int
    """Compute threads of the engine."""
    launched_at: float
    """Seconds since the epoch when the launcher began."""
    warm: bool
    """Forked from a warm parent."""
    schema_version: int = SCHEMA_VERSION


def write_request(folder: Path, request: LaunchRequest) -> None:
    """Write request.json into `folder`, atomically; not synced, since it outlives nothing."""
    partial = folder / f".{REQUEST_FILE}.tmp"
    partial.write_text(json.dumps(encode(request), indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / REQUEST_FILE)


def read_request(folder: Path) -> LaunchRequest:
    """Read request.json back.

    Raises:
        RecordError: it is missing, damaged, or of another schema version.
    """
    path = folder / REQUEST_FILE
    data = read_json(path)
    if isinstance(data, dict):
        check_schema_version(data.get("schema_version"), path)
    return decode(LaunchRequest, data, str(path))
