"""What an interpreter says of itself, asked in a child that runs as a launch's child would."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
from harness.core import Json, Setting
from harness.core.engine_names import VLLM
from harness.launch import child_environment, engine_supports
from harness.settings import Matrix, load_matrix
from harness.settings.engines import EngineEntry, parse_interpreters

TIMEOUT_S = 120.0
"""Loading torch from a cold disk takes a minute at worst."""
QUICK_TIMEOUT_S = 30.0

_START = """\
import sys
if sys.version_info < (3, 11):
    sys.exit("Python %d.%d is too old: the harness needs 3.11 or newer" % sys.version_info[:2])
import runpy
sys.argv[0] = "examine"
runpy.run_module("harness.engines.examine", run_name="__main__")
"""


def open_matrix(
    path: Path | None, *, engine: str | None = None, pythons: Sequence[str] = ()
) -> Matrix:
    """Read a matrix; interpreters without a label are asked for one.

    Raises:
        UsageError: there is no such engine, or an option cannot be read.
        MatrixError: the file is missing or wrong.
    """
    if engine is not None:
        engine_supports(engine)
    return load_matrix(path, engine=engine, pythons=pythons, ask=ask_label)


def choose_interpreter(
    engine: str, python: str | None, *, option: str = "--python"
) -> dict[str, Any]:
    """The fields `python` and `release` of settings that run under one interpreter.

    Args:
        engine: name of the engine.
        python: `PATH` or `LABEL=PATH`; None is the harness's own interpreter.
        option: what error texts call it.

    Raises:
        UsageError: there is no such engine, or no such interpreter.
    """
    texts = () if python is None else (str(python),)
    (entry,) = choose_interpreters(engine, texts, option=option)
    return {"python": entry.python, "release": entry.release}


def choose_interpreters(
    engine: str, pythons: Sequence[str], *, option: str = "--python"
) -> tuple[EngineEntry, ...]:
    """An engine under each of some interpreters; none stands for the harness's own.

    Raises:
        UsageError: as `choose_interpreter`, or a label is given twice.
    """
    engine_supports(engine)
    return parse_interpreters(engine, pythons, ask=ask_label, option=option)


def ask_label(engine: str, python: str) -> str:
    """The version of an engine that an interpreter has; `""` where it cannot say.

    The embedded engine comes with the harness: torch's version stands for its interpreter.
    """
    facts = examine(python, is_quick=True)
    if "problem" in facts:
        return ""
    if engine in VLLM:
        return str(facts["vllm"]["version"]) if facts["vllm"] else ""
    if engine == "accelerate":
        return facts["accelerate"] or ""
    return f"torch-{facts['torch']}" if facts["torch"] else f"python-{facts['python']}"


def examine(python: str, *, is_quick: bool = False) -> dict[str, Json]:
    """Ask one interpreter, in a child that can import the harness and its own packages only.

    Args:
        python: the interpreter's path.
        is_quick: leaves torch unloaded, and so what only it can tell.

    Returns:
        The facts of `engines/examine.py`, or `problem`: one line.
    """
    package = Path(harness.__file__).absolute().parent
    with tempfile.TemporaryDirectory(prefix="harness-examine-") as scratch:
        (Path(scratch) / "harness").symlink_to(package, target_is_directory=True)
        env = {**child_environment(Setting()), "PYTHONPATH": scratch}
        try:
            child = subprocess.run(
                [python, "-c", _START, *(["--quick"] if is_quick else [])],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=QUICK_TIMEOUT_S if is_quick else TIMEOUT_S,
                check=False,
                cwd=scratch,
                env=env,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            return {"problem": f"it gave no answer within {error.timeout:g} s"}
        except OSError as error:
            return {"problem": f"it cannot be started: {(error.strerror or str(error)).lower()}"}
    return _read_answer(child)


def _read_answer(child: subprocess.CompletedProcess[str]) -> dict[str, Json]:
    said = (child.stderr.strip() or child.stdout.strip()).splitlines()
    last = said[-1].strip() if said else "it said nothing"
    if child.returncode:
        how = "exit code" if child.returncode > 0 else "signal"
        return {"problem": f"it failed with {how} {abs(child.returncode)}: {last}"}
    try:
        facts = json.loads(child.stdout.splitlines()[-1])
        if not isinstance(facts, dict) or "python" not in facts:
            raise ValueError("no facts")
    except (ValueError, IndexError):
        return {"problem": f"it answered nothing that can be read: {last}"}
    return facts
