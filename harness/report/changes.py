"""Configuration in effect that is not the same in every release: a changed default is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.core import Json, Run, Setting

from .effect import NOTHING, show_value
from .order import release_of

ABSENT = "absent"
"""Shown where a release has no such key at all."""
LONGEST = 140
"""Characters of a value that are shown; the rest is in its title."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One key whose value differs between releases."""

    name: str
    """Dotted key; environment variables begin with `env `."""
    where: str
    """The baselines it was read from: `V1, V2`."""
    asked: str
    values: tuple[str, ...]
    """In the order of the releases; `absent` where a release lacks the key."""
    is_new: tuple[bool, ...]
    """Which of them differ from the release before."""


def view_changes(
    engine: str, releases: Sequence[str], runs: Iterable[Run]
) -> tuple[ChangeRow, ...]:
    """Compare what the baselines of an engine ended up with, release by release.

    Baselines are held against those that differ from them in nothing but the release. A key that
    changes between two launches of one release says nothing about releases, and is left out.
    """
    found: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for label, setting, by_release in _variants(engine, runs):
        present = [r for r in releases if r in by_release]
        if len(present) < 2:
            continue
        for name in sorted(set().union(*(flat for r in present for flat in by_release[r]))):
            if values := _values(name, releases, by_release):
                where = found.setdefault((name, values, _asked(setting, name)), [])
                where += [label] if label not in where else []
    return tuple(
        ChangeRow(
            name=name,
            where=", ".join(where),
            asked=asked,
            values=values,
            is_new=_is_new(values),
        )
        for (name, values, asked), where in sorted(found.items())
    )


def _variants(
    engine: str, runs: Iterable[Run]
) -> Iterable[tuple[str, Setting, dict[str, list[dict[str, str]]]]]:
    """Label, setting, and by release what each launch of that baseline had in effect."""
    groups: dict[str, tuple[str, Setting, dict[str, list[dict[str, str]]]]] = {}
    for run in runs:
        setting = run.setting
        if setting.engine != engine or not setting.is_baseline or run.probe is None:
            continue
        model = run.probe.effective_config.get("model")
        same = replace(setting, release="", python=None)
        key = f"{same.compute_hash()} {model}"
        entry = groups.setdefault(key, (_label(setting), setting, {}))
        entry[2].setdefault(release_of(setting), []).append(
            {
                **_flat(run.probe.effective_config),
                **{f"env {k}": v for k, v in _flat(run.probe.env).items()},
            }
        )
    return sorted(groups.values(), key=lambda entry: entry[0])


def _label(setting: Setting) -> str:
    parts = [setting.runner.upper() if setting.runner else "auto"]
    parts += [] if setting.enforce_eager else ["graph"]
    parts += ["server"] if setting.server else (["mp"] if setting.multiprocessing else [])
    return " ".join(parts)


def _flat(values: Mapping[str, Json], prefix: str = "") -> dict[str, str]:
    """Nested keys joined by dots; addresses within a value say nothing and are blanked."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            text = "none" if value is None else show_value(value)
            flat[f"{prefix}{name}"] = _ADDRESS.sub("0x…", text)
    return flat


def _values(
    name: str, releases: Sequence[str], by_release: Mapping[str, list[dict[str, str]]]
) -> tuple[str, ...] | None:
    """The key's value in each release; None where it is the same in all, or varies within one."""
    values = []
    for release in releases:
        seen = {flat.get(name, ABSENT) for flat in by_release.get(release, ())}
        if len(seen) > 1:
            return None
        values.append(seen.pop() if seen else NOTHING)
    return tuple(values) if len(set(values) - {NOTHING}) > 1 else None


def _asked(setting: Setting, name: str) -> str:
    """What was asked for under this name; nothing asked means a default is in effect."""
    env = name.removeprefix("env ")
    given = setting.engine_env() if env != name else setting.engine_kwargs()
    value = given.get(env)
    return NOTHING if value is None else show_value(value)


def _is_new(values: Sequence[str]) -> tuple[bool, ...]:
    known, found = None, []
    for value in values:
        found.append(known is not None and value not in (NOTHING, known))
        known = known if value == NOTHING else value
    return tuple(found)
