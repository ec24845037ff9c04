"""What the engine ended up with: classes alive, configuration, environment, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core import Json
from harness.engines.base import EngineView

from .drift import Drift


def read_config(view: EngineView, drift: Drift) -> dict[str, Any]:
    """Fields of `ProbeSnapshot` that say which engine this is and how it is set."""
    runner = drift.read(lambda: view.runner, None)
    offloader = drift.read(lambda: view.offloader, None)
    return {
        "engine_version": drift.read(lambda: view.version, "unknown"),
        "runner_class": "" if runner is None else class_path(runner),
        "runner": drift.read(lambda: view.runner_version, None),
        "offloader_class": "" if offloader is None else type(offloader).__name__,
        "reported_offloaded_bytes": drift.read(lambda: view.reported_offloaded_bytes, 0),
        "effective_config": plain(drift.read(lambda: view.effective_config, {})),
        "env": plain(drift.read(lambda: view.env, {})),
        "warnings": drift.read(lambda: view.warnings, ()),
    }


def class_path(value: object) -> str:
    """`module.Class` of a live object."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def plain(values: Mapping[str, Any]) -> dict[str, Json]:
    """The same mapping as JSON data; what has no JSON form is shown by its `repr`."""
    return {str(name): _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Json:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value)
