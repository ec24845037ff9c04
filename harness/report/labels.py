"""What a cell is called: its row, its offload setting in words, the axes it is filtered by."""

from __future__ import annotations

from harness.core import CaseResult, Setting

from .effect import NOTHING
from .order import release_of


def row_label(result: CaseResult) -> str:
    """The offload setting in words, faults included: `prefetch 8/2/1, pin off`."""
    case = result.case
    label = offload_label(case.target)
    if case.role == "runner":
        label = f"V1 against V2: {label}"
    if case.role == "release":
        label = f"against the release before: {label}"
    return label


def offload_label(setting: Setting) -> str:
    """The offload setting in words: `none`, `uva 0.5 GiB, only mlp`, `prefetch 8/2/1, pin off`."""
    offload = setting.offload
    backend = offload.resolved_backend
    if backend == "uva":
        label = f"uva {offload.cpu_offload_gb:g} GiB"
        selectors = offload.cpu_offload_params
    elif backend == "prefetch":
        numbers = (offload.offload_group_size, offload.offload_num_in_group)
        label = f"prefetch {numbers[0]}/{numbers[1]}/{offload.offload_prefetch_step}"
        selectors = offload.offload_params
    elif backend == "device_map":
        places = [f"{name or 'all'} on {place}" for name, place in offload.device_map.items()]
        label, selectors = f"device map, {', '.join(sorted(places))}", frozenset()
    else:
        label, selectors = backend.replace("_", " "), frozenset()
    parts = [label]
    parts += [] if offload.pin_memory else ["pin off"]
    parts += [] if offload.uva else ["uva off"]
    parts += [f"only {' + '.join(sorted(selectors))}"] if selectors else []
    parts += [f"also {request}" for request in offload.ignored_requests]
    return ", ".join(parts)


def filter_axes(setting: Setting, model: str) -> dict[str, str]:
    """The axes the page filters by; `backend` and `pin` of the target."""
    backend = setting.offload.resolved_backend
    pin = "on" if setting.offload.pin_memory else "off"
    axes = {"model": model, "runner": setting.runner or "auto", "backend": backend}
    axes["pin"] = pin if backend in ("uva", "prefetch") else NOTHING
    if setting.engine != "reference" or setting.release:
        axes |= {"engine": setting.engine, "release": release_of(setting)}
    return axes
