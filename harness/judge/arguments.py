"""Further engine arguments, held against what the live engine says is in effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from harness.core import Json, ProbeSnapshot, Setting
from harness.core.codec import canonical_json

_SAME_WORDS: dict[str, Json] = {"half": "float16", "float": "float32", "true": 1.0, "false": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentCheck:
    """One engine argument of one side."""

    name: str
    asked: Json
    effective: Json
    """None where the engine does not tell."""
    is_ok: bool | None
    """None when it could not be checked."""

    @property
    def words(self) -> str:
        """`max_model_len=64 was asked for, 128 is in effect`."""
        return f"{self.name}={self.asked} was asked for, {self.effective} is in effect"


def check_arguments(setting: Setting, probe: ProbeSnapshot) -> tuple[ArgumentCheck, ...]:
    """Hold every further engine argument against the configuration in effect.

    Args:
        setting: its `engine_args` are what was asked; the offload fields and `enforce_eager` are
            judged elsewhere.
        probe: what the live engine ended up with.

    Returns:
        One check for each argument, by name; those the engine does not tell are unchecked.
    """
    checks = []
    for name, asked in sorted(setting.engine_args.items()):
        known = name in probe.effective_config
        effective = probe.effective_config.get(name)
        is_ok = same_value(asked, effective) if known else None
        checks.append(ArgumentCheck(name=name, asked=asked, effective=effective, is_ok=is_ok))
    return tuple(checks)


def argument_rows(baseline: Iterable[ArgumentCheck], target: Iterable[ArgumentCheck]) -> list[Json]:
    """A row for each argument of either side; `ok` is None where one could not be checked."""
    left, right = ({check.name: check for check in side} for side in (baseline, target))
    rows: list[Json] = []
    for name in dict.fromkeys([*right, *left]):
        one, other = left.get(name), right.get(name)
        words = {check.is_ok for check in (one, other) if check is not None}
        rows.append(
            {
                "name": name,
                "asked": other and other.asked,
                "asked_baseline": one and one.asked,
                "baseline": one and one.effective,
                "target": other and other.effective,
                "ok": False if False in words else (None if None in words else True),
            }
        )
    return rows


def same_value(asked: Json, effective: Json) -> bool | None:
    """Whether a value in effect is the one asked for, however it is spelled.

    `auto` and None leave the choice to the engine. Numbers are equal by value, lists as sets, a
    mapping when every key asked for is; `torch.float16`, `float16` and `half` are one, and so are
    two spellings of a path. None: a structure was asked for and only its text is known, or the
    other way round, or the name of an enumeration's member stands for a number.
    """
    if asked is None or asked == "auto":
        return True
    if _is_other_kind(asked, effective):
        return None
    if isinstance(asked, Mapping) and isinstance(effective, Mapping):
        words = [same_value(v, effective[k]) if k in effective else None for k, v in asked.items()]
        return False if False in words else (None if None in words else True)
    if isinstance(asked, list | tuple) and isinstance(effective, list | tuple):
        return _as_set(asked) == _as_set(effective)
    return bool(_plain(asked) == _plain(effective))


def _is_other_kind(asked: Json, effective: Json) -> bool:
    """Whether the two are told in ways that cannot be compared."""
    if isinstance(asked, Mapping | list | tuple) and isinstance(effective, str):
        return True
    if isinstance(effective, Mapping) and not isinstance(asked, Mapping):
        return True
    names = [v for v in (asked, effective) if isinstance(v, str) and v.isupper()]
    numbers = [v for v in (asked, effective) if isinstance(v, int) and not isinstance(v, bool)]
    return len(names) == len(numbers) == 1


def _as_set(values: list[Json] | tuple[Json, ...]) -> set[str]:
    return {canonical_json(_plain(v)) for v in values}


def _plain(value: Json) -> Json:
    """One spelling for all that mean the same; a number, a word in lower case, or a path."""
    if isinstance(value, Mapping | list | tuple) or value is None:
        return value
    try:
        return float(value)
    except ValueError:
        pass
    if "/" in value or "\\" in value:
        return str(PurePath(value))
    word = value.removeprefix("torch.").lower()
    return _SAME_WORDS.get(word, word)
