"""The application: verbs, and the one place where errors become one line and an exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer
from typer.exceptions import TyperException

import harness
from harness.core import ExitCode, HarnessError

from . import bench, compare, doctor, faults, listing, properties, report, run, show
from .console import INTERRUPTED, err, out

WRONG_PATHS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError,
               PermissionError)  # fmt: skip
"""A path that the user gave leads nowhere: a usage error; other failures of a disk are not."""

app = typer.Typer(
    name="harness",
    help="Tells whether weight offload in an LLM inference engine is right, and stays right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all pass and proven, 1 some FAIL, 2 usage, 3 some ERROR, "
    "4 some VACUOUS or nothing compared, 5 all UNSUPPORTED, 130 interrupted.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"harness {harness.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print it."),
    ] = False,
) -> None:
    """Tells whether weight offload in an LLM inference engine is right, and stays right."""


app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("faults")(faults.faults)
app.command("properties")(properties.properties)
app.command("report")(report.report)
app.command("list")(listing.list_cells)
app.command("show")(show.show)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(args=arguments, standalone_mode=False)
        if code == INTERRUPTED:
            err.print("harness: interrupted")
    except (KeyboardInterrupt, typer.Abort):
        _tell(arguments, "interrupted", INTERRUPTED)
        code = INTERRUPTED
    except TyperException as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        _tell(arguments, text or "see harness --help", ExitCode.USAGE)
        code = ExitCode.USAGE
    except HarnessError as error:
        _tell(arguments, str(error), error.exit_code)
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.PASS
    except OSError as error:
        code = ExitCode.USAGE if isinstance(error, WRONG_PATHS) else ExitCode.ERROR
        path = error.filename2 or error.filename or "a file"
        _tell(arguments, f"{path}: {error.strerror or error}", code)
    sys.exit(int(code or 0))


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """A SIGTERM ends an invocation the way Ctrl-C does: children first, the record kept."""
    raise KeyboardInterrupt


def _tell(arguments: list[str], message: str, code: int) -> None:
    """One line on stderr; with --json the same as an object on stdout."""
    if "--json" in arguments:
        sys.stdout.write(json.dumps({"error": message, "exit_code": int(code)}) + "\n")
    err.print(f"harness: {message}", markup=False)
