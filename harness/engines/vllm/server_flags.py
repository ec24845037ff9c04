"""Engine arguments by keyword -> the server's command line, as its own parser wants them."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Collection, Mapping

from harness.core import Json
from harness.engines.base import EngineRefused

PARSERS = (
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.openai.api_server",
)
"""Where releases keep `make_arg_parser`; the first that has it is asked."""

Options = Mapping[str, argparse.Action]
"""Option string -> what the parser does with it."""


def server_options() -> Options | None:
    """The options of this release's server; None where its parser is not to be found."""
    for path in PARSERS:
        try:
            module = importlib.import_module(path)
            parser = module.make_arg_parser(module.FlexibleArgumentParser())
        except (ModuleNotFoundError, AttributeError):
            continue
        return {text: action for action in parser._actions for text in action.option_strings}
    return None


def as_flags(kwargs: Mapping[str, Json], options: Options | None) -> list[str]:
    """Flags that give the server what `LLM(**kwargs)` gets.

    Args:
        kwargs: engine arguments by their keyword names.
        options: of the server; None takes every name for one it has.

    Raises:
        EngineRefused: the server has no such argument, or it cannot be told this value.
    """
    flags: list[str] = []
    for name, value in kwargs.items():
        flag = "--" + name.replace("_", "-")
        if options is not None and flag not in options:
            raise EngineRefused(f"vLLM's server has no argument {name!r} (given {name}={value!r})")
        flags += _as_flag(flag, value, options)
    return flags


def _as_flag(flag: str, value: Json, options: Options | None) -> list[str]:
    action = None if options is None else options[flag]
    if isinstance(value, bool) and (action is None or action.nargs in (0, "?")):
        return _as_switch(flag, value, action, options or ())
    if value is None:
        is_default = action is None or action.nargs == 0 or action.default is None
        return [] if is_default else [f"{flag}=None"]
    is_many = action is None or action.nargs in ("+", "*") or isinstance(action.nargs, int)
    if isinstance(value, list) and is_many:
        return [flag, *(_as_text(item) for item in value)] if value else []
    return [f"{flag}={_as_text(value)}"]


def _as_switch(
    flag: str, value: bool, action: argparse.Action | None, known: Collection[str]
) -> list[str]:
    """A switch given as true or false; vLLM has most as `--x` and `--no-x`, some as `--x` alone.

    Raises:
        EngineRefused: the server cannot be told so.
    """
    no_flag = "--no-" + flag.removeprefix("--")
    if action is None or no_flag in known:
        return [flag if value else no_flag]
    if value is action.const:
        return [flag]
    if value is action.default:
        return []
    raise EngineRefused(
        f"vLLM's server cannot be given {flag.removeprefix('--').replace('-', '_')}={value}: it "
        f"has {flag}, which means {action.const}, and no {no_flag}; leave it out, or run in process"
    )


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
