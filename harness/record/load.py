"""Reads a session back: manifest, results, and runs on demand; refuses what it does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core import CaseResult, Json, Outcome, RecordError, Run, decode
from harness.core.runfiles import check_schema_version, read_json

from .artifacts import RunFolder
from .store import CASES_FILE, MANIFEST_FILE, RUNS_FOLDER

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A recorded session."""

    folder: Path
    manifest: Mapping[str, Json]
    results: tuple[CaseResult, ...]
    """In the order they were judged."""
    runs: Mapping[str, Run]
    """Run id -> Run, read from disk on first access."""
    problems: tuple[str, ...] = ()
    """What is missing from the record; a session that was killed has some."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        return str(self.manifest.get("session_id", self.folder.name))

    @property
    def outcome(self) -> Outcome | None:
        """What the session concluded; None when it never finished."""
        data = self.manifest.get("outcome")
        return None if data is None else decode(Outcome, data, f"{MANIFEST_FILE}.outcome")

    def frame(self) -> pd.DataFrame:
        """A row for each case, flat columns; see `harness/record/frame.py`."""
        from .frame import build_frame

        return build_frame(self)


def load_session(path: Path | str) -> Session:
    """Load a session's folder, the latest session of a reports folder, or a cases.jsonl.

    Raises:
        RecordError: there is no session, it is damaged, or another schema version wrote it.
    """
    path = Path(path)
    if path.name == CASES_FILE and path.is_file():
        folder = path.parent
    elif (path / MANIFEST_FILE).is_file() or (path / CASES_FILE).is_file():
        folder = path
    else:
        folder = latest_session(path)
    problems: list[str] = []
    manifest = _read_manifest(folder / MANIFEST_FILE, problems)
    results = _read_cases(folder / CASES_FILE, problems)
    runs = RunFolder(folder / RUNS_FOLDER)
    return Session(
        folder=folder, manifest=manifest, results=results, runs=runs, problems=tuple(problems)
    )


def latest_session(reports_dir: Path | str) -> Path:
    """Folder of the latest session under `reports_dir`; session ids sort by time.

    Raises:
        RecordError: there is no such folder, or no session in it.
    """
    reports_dir = Path(reports_dir)
    if not reports_dir.is_dir():
        raise RecordError(
            f"path={str(reports_dir)!r} is no session folder, reports folder or {CASES_FILE}"
        )
    found = [p.parent for p in reports_dir.glob(f"*/{MANIFEST_FILE}")]
    if not found:
        raise RecordError(
            f"{reports_dir}: holds no session (no */{MANIFEST_FILE}); run `harness run` first"
        )
    return max(found, key=lambda folder: folder.name)


def _read_manifest(path: Path, problems: list[str]) -> Mapping[str, Json]:
    if not path.is_file():
        problems.append(f"{MANIFEST_FILE} is missing: nothing is known of how the session was run")
        return {}
    manifest = read_json(path)
    if not isinstance(manifest, dict):
        raise RecordError(f"{path}: expected an object, found {manifest!r:.80}")
    check_schema_version(manifest.get("schema_version"), path)
    if manifest.get("outcome") is None:
        problems.append("the session never finished: cases may be missing")
    return manifest


def _read_cases(path: Path, problems: list[str]) -> tuple[CaseResult, ...]:
    if not path.is_file():
        problems.append(f"{CASES_FILE} is missing: no case was recorded")
        return ()
    lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    results = [_read_case(line, path, number) for number, line in enumerate(lines, start=1)]
    if tail:
        try:
            results.append(_read_case(tail, path, len(lines) + 1))
        except RecordError as error:
            if _is_json(tail):
                raise error from None
            problems.append(
                f"{CASES_FILE}:{len(lines) + 1}: the last line is cut off after {len(tail)} bytes: "
                "the session was killed while writing it"
            )
    return tuple(results)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _read_case(line: bytes, path: Path, number: int) -> CaseResult:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(f"{path}:{number}:{error.colno}: not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}:{number}:{error.start + 1}: not UTF-8") from None
    if isinstance(data, dict):
        check_schema_version(data.get("schema_version"), path)
    return decode(CaseResult, data, f"{path}:{number}")
