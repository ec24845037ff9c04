"""Secrets out of everything that is written: environment, arguments, log lines.

Told by name only: a name with a word that ends in TOKEN, KEY, SECRET or PASSWORD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .codec import Json

MASK = "***"

_SECRET_WORD = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD)$")
_NOT_SECRET = re.compile(r"TOKEN[_.-](?:IDS?|IDX|COUNT|LIMIT|TYPE)(?=$|[_.-])")
_ASSIGNMENT = re.compile(
    r"""(?P<name>-{0,2}[A-Za-z][A-Za-z0-9_-]*)"""
    r"""(?P<sep>["']\s?:\s?|\s?=\s?(?!=))"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s,;&"'}\])]+)"""
)
_FLAG = re.compile(r"(?P<name>--[A-Za-z][A-Za-z0-9_-]*)(?P<sep>\s+)(?P<value>[^\s-]\S*)")


def is_secret_name(name: str) -> bool:
    """Whether an environment variable, flag or argument of this name holds a secret.

    `HF_TOKEN`, `--api-key` and `PGPASSWORD` do; `token_ids` and `max_num_batched_tokens` do not.
    """
    upper = _NOT_SECRET.sub("", name.upper())
    return any(_SECRET_WORD.search(word) for word in re.split(r"[^A-Z0-9]+", upper))


def redact_env(env: Mapping[str, str | None]) -> dict[str, str | None]:
    """The same variables, secret values masked; None (unset) stays None."""
    return {k: MASK if v is not None and is_secret_name(k) else v for k, v in env.items()}


def redact_argv(argv: Sequence[str]) -> list[str]:
    """The same arguments with `--name value`, `--name=value` and `NAME=value` masked."""
    redacted: list[str] = []
    is_value = False
    for arg in argv:
        is_flag = arg.startswith("--")
        redacted.append(MASK if is_value and not is_flag else redact_text(arg))
        is_value = is_flag and "=" not in arg and is_secret_name(arg)
    return redacted


def redact_text(text: str) -> str:
    """The same text with the value of every secret `NAME=value` or `--name value` masked."""
    if not re.search(r"token|key|secret|password", text, re.IGNORECASE):
        return text
    return _FLAG.sub(_mask, _ASSIGNMENT.sub(_mask, text))


def _mask(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    return f"{match['name']}{match['sep']}{quote}{MASK}{quote}"


def redact_json(data: Json) -> Json:
    """A copy of plain JSON data: string values under secret names masked, other text redacted."""
    if isinstance(data, str):
        return redact_text(data)
    if isinstance(data, list):
        return [redact_json(item) for item in data]
    if isinstance(data, dict):
        return {k: _redact_item(k, v) for k, v in data.items()}
    return data


def _redact_item(name: str, value: Json) -> Json:
    if isinstance(value, str) and is_secret_name(name):
        return MASK
    return redact_json(value)
