"""Writes a session as it goes: a manifest, a line per case, and a folder that the runs fill.

Every write is whole or absent, so a session killed at any moment can be read.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.core import SCHEMA_VERSION, CaseResult, Json, Outcome, RecordError, encode
from harness.core.redact import redact_argv, redact_json
from harness.core.runfiles import write_json_atomic

MANIFEST_FILE = "manifest.json"
CASES_FILE = "cases.jsonl"
RUNS_FOLDER = "runs"


def new_session_id() -> str:
    """A name that sorts by time and does not collide: `20261129-190501-ab12` (UTC)."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class Recorder:
    """One session's folder while it is being written.

    Args:
        session_dir: made here; its name is the session id unless `manifest` gives one.
        manifest: what the caller knows: `argv`, `matrix`, `models`, `num_cases`, `versions` and
            whatever else. The schema version, start time, interpreter and platform are added.

    Raises:
        RecordError: the folder already holds a session.
    """

    def __init__(self, session_dir: Path, manifest: Mapping[str, Json] | None = None) -> None:
        self.session_dir = Path(session_dir)
        self.session_dir.mkdir(parents=True, exist_ok=True)
        if (self.session_dir / MANIFEST_FILE).exists():
            raise RecordError(
                f"{self.session_dir}: already holds a session; a record is never written twice, "
                "choose another folder"
            )
        self.runs_dir.mkdir(exist_ok=True)
        self.num_saved = 0
        self._manifest = _complete(self.session_dir.name, manifest or {})
        self._cases = os.open(
            self.session_dir / CASES_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self._is_open = True
        self._write_manifest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def session_id(self) -> str:
        """The session's id."""
        return str(self._manifest["session_id"])

    @property
    def runs_dir(self) -> Path:
        """Folder of the run folders, one for each launch."""
        return self.session_dir / RUNS_FOLDER

    @property
    def manifest(self) -> Mapping[str, Json]:
        """The manifest as written."""
        return self._manifest

    def update_manifest(self, **entries: Json) -> None:
        """Add or change entries, e.g. the number of cases once the plan is made."""
        self._manifest.update(redact_json(encode(entries)))
        self._write_manifest()

    def save_result(self, result: CaseResult) -> None:
        """Append one case as a whole line, on disk when this returns.

        Raises:
            RecordError: the session is closed.
            OSError: the disk is full or gone.
        """
        if not self._is_open:
            raise RecordError(f"{self.session_dir}: the session is closed, nothing can be added")
        line = json.dumps(redact_json(encode(result)), separators=(",", ":")) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._cases, data) :]
        os.fsync(self._cases)
        self.num_saved += 1

    def close(self, outcome: Outcome | None = None) -> None:
        """End the session; with `outcome` it counts as finished. Closing again does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        os.close(self._cases)
        if outcome is not None:
            finished = {"finished_at": _now(), "outcome": encode(outcome)}
            self.update_manifest(num_recorded=self.num_saved, **finished)

    def _write_manifest(self) -> None:
        write_json_atomic(self.session_dir / MANIFEST_FILE, self._manifest, indent=1)


def _complete(session_id: str, given: Mapping[str, Json]) -> dict[str, Json]:
    """The caller's entries over what is known here, secrets masked."""
    known = {"session_id": session_id, "started_at": _now(), "argv": list(sys.argv)}
    manifest = {"schema_version": SCHEMA_VERSION, **known, **encode(dict(given))}
    manifest["argv"] = redact_argv([str(arg) for arg in manifest["argv"]])
    manifest["versions"] = {**_versions(), **manifest.get("versions", {})}
    manifest.setdefault("finished_at", None)
    manifest.setdefault("outcome", None)
    redacted: dict[str, Json] = redact_json(manifest)
    return redacted


def _versions() -> dict[str, str]:
    try:
        own = metadata.version("offload-harness")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return {"harness": own, "python": platform.python_version(), "platform": platform.platform()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
