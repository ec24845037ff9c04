"""`harness compare`: two settings of one model, given as engine arguments and variables."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from harness.api import attribute_failures, plan_comparison
from harness.core import Tier, UsageError
from harness.interpreters import choose_interpreter
from harness.pipeline import Options, Session
from harness.settings import load_model, load_workload, parse_engine_args

from .console import INTERRUPTED, EngineOption, JsonOption
from .live import Watch
from .pages import write_pages
from .run import describe, finish, run_until_stopped


def compare(
    model: Annotated[str, typer.Argument(help="Name, alias, checkpoint folder or hub id.")],
    baseline: Annotated[
        str, typer.Option(help="Baseline's engine arguments and NAME=VALUE variables, one string.")
    ] = "",
    target: Annotated[str, typer.Option(help="The target's, likewise.")] = "",
    workload: Annotated[str, typer.Option(help="Prompt set.")] = "default",
    dtype: Annotated[str | None, typer.Option(help="Compute in this dtype.")] = None,
    engine: EngineOption = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="[LABEL=]PATH", help="Interpreter for both sides."),
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="Allow near-ties.")] = False,
    output: Annotated[Path, typer.Option("-o", help="Folder that receives the session.")] = Path(
        "reports"
    ),
    json_: JsonOption = False,
) -> int:
    """Compare two settings of one model: null case, planted fault, then the pair."""
    args1, env1 = split_side(baseline)
    args2, env2 = split_side(target)
    work = load_workload(workload, load_model(model, dtype=dtype))
    place = choose_interpreter(engine or "reference", python)
    settings = [
        replace(parse_engine_args(args, env, engine=engine or "reference"), **place)
        for args, env in ((args1, env1), (args2, env2))
    ]
    tier = Tier.LOGPROB if close else Tier.EXACT
    plan = plan_comparison(settings, work, tier=tier, controls=True)
    options = Options()
    manifest = describe(plan, "two settings", None, options)
    command = shlex.join(["harness", *sys.argv[1:]])
    with (
        Watch(quiet=json_) as watch,
        Session(
            output,
            manifest=manifest,
            options=options,
            watch=watch,
            command_for=lambda _case: command,
        ) as session,
    ):
        watch.start("two settings", plan, options.num_jobs)
        outcome, stopped = run_until_stopped(session, plan)
        notes = {} if stopped else attribute_failures(session.results, session)
    pages = write_pages(session, outcome, {**manifest, "attributed": notes})
    finish(session, outcome, pages, json_=json_, attributed=notes)
    return INTERRUPTED if stopped else outcome.exit_code


def split_side(text: str) -> tuple[list[str], dict[str, str | None]]:
    """`VLLM_X=1 --cpu-offload-gb 1` -> arguments and environment.

    Raises:
        UsageError: the quotes in `text` do not close.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot split {text!r}: {error}") from None
    env: dict[str, str | None] = {}
    while words and "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    return words, env
