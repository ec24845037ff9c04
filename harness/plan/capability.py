"""What an engine says it cannot do, held against a setting; the statement is handed in."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core import Json, ModelSpec, Setting, UsageError

_LISTS = ("runners", "backends", "architectures", "dtypes", "quantizations")
_SWITCHES = ("multiprocessing", "server", "graphs", "pin_memory", "uva")


def unsupported_reason(
    setting: Setting, model: ModelSpec, supports: Mapping[str, Json]
) -> str | None:
    """Say why an engine cannot run a setting; None when nothing speaks against it.

    Args:
        setting: what is asked for.
        model: the model it is asked of.
        supports: the engine's own statement. `runners`, `backends`, `architectures`, `dtypes` and
            `quantizations` list what it has; `multiprocessing`, `server`, `graphs`, `pin_memory`
            and `uva` are True, False, or a text that says why not, or `{device: ...}` of these.
            What it leaves out is taken as supported.

    Raises:
        UsageError: the statement has a key or a value of another kind.
    """
    _check(supports)
    offload = setting.offload
    backend = offload.resolved_backend
    asked = {
        "runners": setting.runner,
        "backends": backend if backend != "none" else None,
        "architectures": model.architecture,
        "dtypes": setting.engine_args.get("dtype") or model.dtype,
        "quantizations": _quantization(model),
    }
    for name, value in asked.items():
        if name in supports and value is not None and value not in supports[name]:
            known = ", ".join(supports[name]) or "none"
            return f"engine {setting.engine!r} has {name} {known}, not {value!r}"
    wanted = {
        "multiprocessing": setting.multiprocessing,
        "graphs": not setting.enforce_eager,
        "server": setting.server,
        "pin_memory": backend in ("uva", "prefetch") and offload.pin_memory,
        "uva": backend == "uva" and offload.uva,
    }
    for name, is_wanted in wanted.items():
        answer = supports.get(name, True)
        if isinstance(answer, Mapping):
            answer = answer.get(str(setting.engine_args.get("device")), True)
        if is_wanted and answer is not True:
            why = f": {answer}" if answer else ""
            return f"engine {setting.engine!r} does not support {name}{why}"
    return None


def _quantization(model: ModelSpec) -> str | None:
    config = model.config.get("quantization_config") or {}
    named = config.get("format") or config.get("quant_method")
    return None if named is None else str(named)


def _check(supports: Mapping[str, Json]) -> None:
    for name, value in supports.items():
        if name in _LISTS:
            is_right = isinstance(value, list | tuple | set | frozenset)
        elif name in _SWITCHES:
            answers = value.values() if isinstance(value, Mapping) else (value,)
            is_right = all(isinstance(answer, bool | str) for answer in answers)
        else:
            known = ", ".join((*_LISTS, *_SWITCHES))
            raise UsageError(f"the engine states unknown capability {name!r}; known: {known}")
        if not is_right:
            wanted = "a list" if name in _LISTS else "True, False or a reason"
            raise UsageError(f"the engine's capability {name}={value!r} must be {wanted}")
