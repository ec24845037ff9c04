"""Why a server ended, from what its processes said: their tracebacks, or the parser's error."""

from __future__ import annotations

import builtins
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

REFUSALS = (ValueError, NotImplementedError, TypeError)
CONFIGURING = (
    "create_engine_config",
    "from_cli_args",
    "validate_parsed_serve_args",
    "validate_api_server_args",
)
"""Functions of vLLM in which a setting is refused; the same errors elsewhere are failures."""
HEAD = "Traceback (most recent call last):"
_TAG = re.compile(r"\([\w.-]+(?: pid=\d+)?\) ")
_LOG = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]{8} \[[^]]*\] ?")
_FRAME = re.compile(r'  File ".*", line \d+, in (?P<name>\S+)')
_RAISED = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_USAGE = re.compile(r"\S+\.py: error: (?P<text>.+)")
_ELSEWHERE = re.compile(r"\broot cause\b")
"""Said by a process that only passes on that another failed."""
_FIELD = re.compile(r"^(?:\S.*\n)?  (?P<text>.+?) \[type=", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFailure:
    """The last thing that went wrong, by its cause."""

    kind: str
    """Name of the exception's class, without its module."""
    reason: str
    """Its text in one line."""
    is_refusal: bool = False
    """vLLM's configuration would not have the setting."""
    is_out_of_memory: bool = False


@dataclass(slots=True)
class _Traceback:
    """A traceback while it is read."""

    frames: list[str] = field(default_factory=list)
    raised: str = ""
    text: list[str] = field(default_factory=list)
    """The exception's message, line by line."""


def read_failure(lines: Iterable[str]) -> ServerFailure | None:
    """What the processes of a server say went wrong; None when they say nothing.

    Args:
        lines: output of all its processes, as it came.
    """
    found, usage = _read_tracebacks(lines)
    if usage:
        return ServerFailure(kind="ArgumentError", reason=usage, is_refusal=True)
    if not found:
        return None
    roots = [each for each in found if not _ELSEWHERE.search(" ".join(each.text))]
    last = (roots or found)[-1]
    kind = last.raised.rsplit(".", 1)[-1]
    is_configuring = any(name in last.frames for name in CONFIGURING)
    return ServerFailure(
        kind=kind,
        reason=_one_reason("\n".join(last.text)) or kind,
        is_refusal=is_configuring and _is_refusal(last.raised),
        is_out_of_memory=kind == "OutOfMemoryError",
    )


def _read_tracebacks(lines: Iterable[str]) -> tuple[list[_Traceback], str]:
    """Complete tracebacks in the order they ended, and the parser's error, if any."""
    found: list[_Traceback] = []
    reading: dict[str, _Traceback] = {}
    usage = ""
    for line in lines:
        tag = match[0] if (match := _TAG.match(line)) else ""
        rest = line[len(tag) :]
        logged = _LOG.match(rest)
        rest = rest[logged.end() :] if logged else rest
        is_failure = logged is None or logged["level"] in ("ERROR", "CRITICAL")
        current = reading.get(tag)
        if rest.strip() == HEAD and is_failure:
            reading[tag] = _Traceback()
        elif match := _USAGE.match(rest):
            usage = match["text"]
        elif current is None or not is_failure:
            continue
        elif not current.raised:
            if _is_end(current, rest):
                found.append(current)
        elif rest.startswith(" "):
            current.text.append(rest)
        else:
            del reading[tag]
    return found, usage


def _is_end(current: _Traceback, line: str) -> bool:
    """Read a line that belongs to a traceback; whether it names what was raised."""
    if match := _FRAME.match(line):
        current.frames.append(match["name"])
    elif not line.startswith(" ") and (match := _RAISED.match(line)):
        current.raised = match["kind"]
        current.text.append(match["text"] or "")
    return bool(current.raised)


def _is_refusal(name: str) -> bool:
    """Whether a class named in a traceback is one of `REFUSALS`, or made from one."""
    module, _, kind = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module) if module else builtins, kind)
    except (ImportError, AttributeError):
        return False
    return isinstance(found, type) and issubclass(found, REFUSALS)


def _one_reason(text: str) -> str:
    """One line, without the furniture of a validation error."""
    if "validation error" in text:
        _, _, details = text.partition("\n")
        if match := _FIELD.match(details):
            text = match["text"].removeprefix("Value error, ")
    return " ".join(text.split())
