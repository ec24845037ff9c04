"""The run folder: run.json, outputs.jsonl and probe.json, written atomically and read back.

Shared by the child that writes it and by the record that reads it; standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from .codec import SCHEMA_VERSION, Json, decode, encode
from .errors import RecordError
from .probe import ProbeSnapshot
from .redact import redact_json
from .run import RequestOutput, Run

RUN_FILE = "run.json"
OUTPUTS_FILE = "outputs.jsonl"
PROBE_FILE = "probe.json"


def write_run(folder: Path, run: Run) -> None:
    """Write `run` into `folder`, made when missing; secrets are redacted by name.

    run.json is written last: a folder without it holds no finished run. Nothing is synced: after
    a power cut the run is launched again.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN_FILE).unlink(missing_ok=True)
    lines = [json.dumps(encode(output), separators=(",", ":")) + "\n" for output in run.outputs]
    write_text_atomic(folder / OUTPUTS_FILE, "".join(lines), sync=False)
    if run.probe is None:
        (folder / PROBE_FILE).unlink(missing_ok=True)
    else:
        write_json_atomic(folder / PROBE_FILE, redact_json(encode(run.probe)), sync=False)
    data = encode(run)
    del data["outputs"], data["probe"]
    data = {"schema_version": SCHEMA_VERSION, **redact_json(data)}
    write_json_atomic(folder / RUN_FILE, data, indent=1, sync=False)


def read_run(folder: Path) -> Run:
    """Read back what `write_run` wrote.

    Raises:
        RecordError: a file is missing, damaged, or of another schema version.
    """
    data = read_json(folder / RUN_FILE)
    if not isinstance(data, dict):
        raise RecordError(f"{folder / RUN_FILE}: expected an object, found {data!r:.80}")
    check_schema_version(data.pop("schema_version", None), folder / RUN_FILE)
    run = decode(Run, data, str(folder / RUN_FILE))
    probe_file = folder / PROBE_FILE
    probe = None
    if probe_file.is_file():
        probe = decode(ProbeSnapshot, read_json(probe_file), str(probe_file))
    return replace(run, outputs=_read_outputs(folder / OUTPUTS_FILE), probe=probe)


def _read_outputs(path: Path) -> tuple[RequestOutput, ...]:
    outputs = []
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise RecordError(f"{path}:{number}:{error.colno}: not JSON: {error.msg}") from None
        outputs.append(decode(RequestOutput, data, f"{path}:{number}"))
    return tuple(outputs)


def check_schema_version(found: Json, path: Path) -> None:
    """Refuse a file of another schema version.

    Raises:
        RecordError: `found` is not the version this package reads.
    """
    if found != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema_version={found!r} is not supported; this harness reads "
            f"schema_version {SCHEMA_VERSION}; use the harness version that wrote it"
        )


def read_json(path: Path) -> Json:
    """Parse one JSON file.

    Raises:
        RecordError: it is missing, unreadable or not JSON (with line and column).
    """
    try:
        return json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise RecordError(f"{place}: not JSON: {error.msg}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; the run was not finished") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None


def write_json_atomic(
    path: Path, data: Json, *, indent: int | None = None, sync: bool = True
) -> None:
    """Write plain JSON data so that a reader sees the old file or the new one, never a part."""
    separators = (",", ":") if indent is None else None
    write_text_atomic(
        path, json.dumps(data, indent=indent, separators=separators) + "\n", sync=sync
    )


def write_text_atomic(path: Path, text: str, *, sync: bool = True) -> None:
    """Write `text` to a temporary file beside `path`, and rename it over `path`.

    Args:
        path: what to replace; its folder must exist.
        text: the whole content.
        sync: wait until the bytes are on the disk; without it a power cut may lose the file.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
