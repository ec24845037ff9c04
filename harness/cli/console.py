"""The two consoles, and the options that every verb shares."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.cells import Selector
from harness.core import Case, UsageError
from harness.core.codec import encode
from harness.rerun import engine_words
from harness.settings import parse_selection


class PipeConsole(Console):
    """A console whose reader may leave: the invocation goes on, and its exit code stays its own."""

    def on_broken_pipe(self) -> None:
        """Write the rest nowhere."""
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), (sys.stderr if self.stderr else sys.stdout).fileno()
        )


out = PipeConsole(highlight=False, soft_wrap=True)
err = PipeConsole(stderr=True, highlight=False, soft_wrap=True)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
MatrixOption = Annotated[
    Path | None, typer.Option("--matrix", metavar="FILE", help="Matrix file; default: built in.")
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="Model instead of the matrix's; may repeat."),
]
SelectOption = Annotated[
    str, typer.Option("-k", metavar="EXPR", help="Keep cells whose id matches, as in pytest.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="Engine instead of the matrix's."),
]
PythonOption = Annotated[
    list[str] | None,
    typer.Option(
        "--python",
        metavar="[LABEL=]PATH",
        help="Interpreter of a release of the engine, instead of the matrix's; may repeat.",
    ),
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option("--fault", metavar="NAME", help="Plant a fault in every target; may repeat."),
]
CellOption = Annotated[
    list[str] | None, typer.Option("--cell", metavar="ID", help="One cell by its id; may repeat.")
]
ShardOption = Annotated[
    str, typer.Option("--shard", metavar="I/N", help="The I-th of N parts of the cells.")
]


REPORTS = "reports"
"""Folder that a session is left in, and looked for in, where none is named."""


def count(num: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def print_json(data: object) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(encode(data), indent=2) + "\n")


def parse_shard(text: str) -> tuple[int, int]:
    """`2/5` -> (2, 5).

    Raises:
        UsageError: not `I/N` with 1 <= I <= N.
    """
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    index, total = map(int, found.groups()) if found else (0, 0)
    if 1 <= index <= total:
        return index, total
    raise UsageError(f"--shard {text!r} must be I/N with 1 <= I <= N, for example 2/5")


def rerun(case: Case, matrix: Path | None, *, names_engine: bool = False) -> str:
    """The command that runs one cell again.

    Args:
        case: the cell.
        matrix: the matrix file it is from; None is the built-in one.
        names_engine: the engine and its interpreters are not the matrix's own.
    """
    role = {"null": " (its null case)", "control": ""}.get(case.role, "")
    words = ["harness", "run"]
    if matrix is not None:
        words += ["--matrix", str(matrix)]
    words += engine_words(case.target, always=True) if names_engine else []
    words += ["--model", case.workload.model.stand_in_for or case.workload.model.name]
    faults = [] if case.role == "control" else list(case.target.faults)
    bare = case.anchor.split("!", 1)[0].replace("/null-", "/").replace("/control-", "/")
    for fault in faults:
        words += ["--fault", fault]
    if not role:
        words += ["--cell", bare]
    return shlex.join(words)


def show_command(case: Case, session: Path) -> str:
    """The command that shows a recorded cell, wherever its session lies.

    Args:
        case: the cell.
        session: its session's folder, as the user reaches it from here.
    """
    words = ["harness", "show", case.anchor]
    is_usual = session.parent.absolute() == Path(REPORTS).absolute()
    return shlex.join(words if is_usual else [*words, "--run", str(session)])


def select_cells(expression: str, cells: Sequence[str]) -> Selector | None:
    """A predicate from `-k` and `--cell`; None when neither is given.

    Raises:
        UsageError: the expression does not parse.
    """
    if not expression and not cells:
        return None
    matches = parse_selection(expression) if expression else None
    wanted = set(cells)

    def keep(anchor: str, axes: Mapping[str, str]) -> bool:
        bare = anchor.split("!", 1)[0]
        if wanted and anchor not in wanted and bare not in wanted:
            return False
        return matches is None or matches(anchor, axes)

    return keep
