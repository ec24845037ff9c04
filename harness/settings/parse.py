"""Engine arguments and environment, written as vLLM's tests write them, into a Setting.

Nothing is dropped and nothing is overridden: what cannot be placed or contradicts is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from harness.core import OWNED_ENV, Json, OffloadConfig, Runner, Setting, SettingError, UsageError
from harness.core.setting import (
    DEFAULT_INSTRUMENTS,
    ENV_DISABLE_PIN,
    ENV_DISABLE_UVA,
    ENV_MULTIPROCESSING,
    ENV_RUNNER,
)

from .flags import (
    FLAGS,
    GRAPHS_BY_DEFAULT,
    PASSES_UNKNOWN_ON,
    flag_name,
    read_literal,
    read_value,
    unknown_flag,
)

_NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """One keyword, its value, and the text that set it."""

    value: Json
    text: str


def parse_engine_args(
    args: Sequence[str],
    env: Mapping[str, str | None] | None = None,
    *,
    engine: str = "reference",
    force_runner: Runner | None = None,
    instruments: Sequence[str] | None = None,
) -> Setting:
    """Build the setting that command-line strings and an environment ask for.

    Args:
        args: e.g. `["--cpu-offload-gb", "1", "--offload-params", "gate_up_proj", "down_proj"]`;
            `--name=value`, comma lists and repeated list flags mean the same.
        env: variables of the engine's process; None unsets. Those a Setting's own fields decide
            are absorbed into the fields.
        engine: `reference` refuses unknown flags; real engines get them by keyword, and vLLM's
            record graphs without `--enforce-eager`, as vLLM does.
        force_runner: the runner this setting must use.
        instruments: recorders inside the engine; None takes the engine's usual ones.

    Raises:
        SettingError: a value is out of range, or `env` contradicts `force_runner`.
        UsageError: a flag or a value cannot be read.
    """
    given = _read_args(args, engine)
    environment = dict(env or {})
    owned = {name: _read_switch(name, environment.pop(name, None)) for name in OWNED_ENV}
    offload = {name: g for name, g in given.items() if name in FLAGS and FLAGS[name].is_offload}
    rest = {n: g.value for n, g in given.items() if n not in offload and n != "enforce_eager"}
    eager = given.get("enforce_eager")
    return Setting(
        engine=engine,
        runner=_choose_runner(owned[ENV_RUNNER], force_runner),
        offload=_build_offload(offload, owned),
        enforce_eager=engine not in GRAPHS_BY_DEFAULT if eager is None else eager.value,
        multiprocessing=bool(owned[ENV_MULTIPROCESSING]),
        engine_args=rest,
        env=_check_env(environment),
        instruments=usual_instruments(engine) if instruments is None else tuple(instruments),
    )


def usual_instruments(engine: str) -> tuple[str, ...]:
    """Recorders in every run of an engine unless others are asked for."""
    return DEFAULT_INSTRUMENTS.get(engine, ())


def _read_args(args: Sequence[str], engine: str) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for name, values, text in _split(args):
        keyword, new = _read_flag(name, values, text, engine)
        old = given.get(keyword)
        if old is None:
            given[keyword] = new
        elif isinstance(old.value, list) and isinstance(new.value, list):
            given[keyword] = _Given(value=old.value + new.value, text=f"{old.text} {new.text}")
        elif old.value != new.value:
            raise UsageError(f"{old.text!r} and {new.text!r} contradict each other; give one")
    return given


def _split(args: Sequence[str]) -> list[tuple[str, list[str], str]]:
    """Cut the arguments into (keyword as written, its values, the text of both)."""
    if isinstance(args, str):
        raise UsageError(f"engine arguments must be a list of strings, found the text {args!r}")
    found: list[tuple[str, list[str], str]] = []
    for arg in args:
        if not isinstance(arg, str):
            raise UsageError(f"engine argument {arg!r} must be a string")
        if arg.startswith("-") and not _NEGATIVE_NUMBER.match(arg):
            name, has_value, value = arg.partition("=")
            found.append((name, [value] if has_value else [], arg))
        elif not found:
            raise UsageError(
                f"Unexpected engine argument {arg!r}: it follows no flag; the model is given apart"
            )
        else:
            name, values, text = found[-1]
            found[-1] = (name, [*values, arg], f"{text} {arg}")
    return found


def _read_flag(name: str, values: list[str], text: str, engine: str) -> tuple[str, _Given]:
    keyword = name.removeprefix("--").replace("-", "_")
    passes_on = engine in PASSES_UNKNOWN_ON
    if not name.startswith("--") or not keyword:
        raise UsageError(f"Unexpected engine argument {name!r}: flags start with two dashes")
    positive = keyword.removeprefix("no_")
    if positive != keyword and (positive == "enforce_eager" or passes_on):
        if values:
            raise UsageError(f"{name} takes no value, found {values[0]!r}")
        return positive, _Given(value=False, text=text)
    flag = FLAGS.get(keyword)
    if flag is None:
        if not passes_on:
            raise unknown_flag(keyword, engine=engine)
        return keyword, _Given(value=read_literal(values), text=text)
    if flag.refusal and not passes_on:
        raise UsageError(f"{text!r} is refused: {flag.refusal}")
    value = read_value(keyword, values, any_choice=passes_on and not flag.is_offload)
    return keyword, _Given(value=value, text=text)


def _build_offload(given: Mapping[str, _Given], owned: Mapping[str, bool | None]) -> OffloadConfig:
    values: dict[str, Any] = {n: frozenset(g.value) if isinstance(g.value, list) else g.value
              for n, g in given.items()}  # fmt: skip
    try:
        return OffloadConfig(
            **values, pin_memory=not owned[ENV_DISABLE_PIN], uva=not owned[ENV_DISABLE_UVA]
        )
    except SettingError as error:
        named = [f.name for f in fields(OffloadConfig) if f.name in str(error)]
        texts = [given[name].text for name in named if name in given]
        missing = [f"{flag_name(name)} not given" for name in named if name not in given]
        raise SettingError(f"{error} (from {', '.join(texts + missing)})") from None


def _read_switch(name: str, value: str | None) -> bool | None:
    if value not in (None, "0", "1"):
        raise SettingError(f"env {name}={value!r} must be '0' or '1', or None to leave it unset")
    return None if value is None else value == "1"


def _choose_runner(wanted: bool | None, force_runner: Runner | None) -> Runner | None:
    if force_runner not in (None, "v1", "v2"):
        raise SettingError(f"force_runner={force_runner!r} must be 'v1' or 'v2'")
    if wanted is None:
        return force_runner
    runner: Runner = "v2" if wanted else "v1"
    if force_runner is not None and runner != force_runner:
        raise SettingError(
            f"env {ENV_RUNNER}={str(int(wanted))!r} asks for runner {runner}, but runner "
            f"{force_runner} is forced; remove the variable or do not force the runner"
        )
    return runner


def _check_env(env: Mapping[str, str | None]) -> dict[str, str | None]:
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise SettingError(f"env name {name!r} must be non-empty text without '='")
        if value is not None and not isinstance(value, str):
            raise SettingError(f"env {name}={value!r} must be text, or None to unset it")
    return dict(env)
