"""The order in which pages show cells and releases, whatever order their runs ended in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.core import Case, CaseResult, Setting
from harness.core.codec import canonical_json
from harness.core.setting import ACCELERATE_BACKENDS

_BACKENDS = ("none", "uva", "prefetch", *ACCELERATE_BACKENDS)
_ROLES = ("case", "runner", "release", "null", "control")
OWN = "the harness's Python"
"""Label of a release that has none: the harness's own interpreter."""


def release_of(setting: Setting) -> str:
    """Label of the engine's release: as given, else its interpreter."""
    return setting.release or setting.python or OWN


def has_releases(results: Iterable[CaseResult]) -> bool:
    """Whether a session is about real engines or several releases, not `reference` alone."""
    places = {(r.case.target.engine, release_of(r.case.target)) for r in results}
    return len(places) > 1 or any(engine != "reference" for engine, _ in places)


def matrix_order(result: CaseResult) -> tuple[object, ...]:
    """Sort key: role, offload setting, model, runner, then the readable ids."""
    setting, role = result.case.target, result.case.role
    offload = setting.offload
    return (
        _ROLES.index(role),
        _BACKENDS.index(offload.resolved_backend),
        offload.cpu_offload_gb,
        (offload.offload_group_size, offload.offload_num_in_group, offload.offload_prefetch_step),
        sorted(offload.cpu_offload_params | offload.offload_params),
        (not offload.uva, not offload.pin_memory),
        result.case.workload.model.name,
        setting.runner or "",
        result.case.anchor,
        result.case.case_id,
    )


def same_but_release(case: Case) -> str:
    """What cells of one row share: all but release and interpreter."""
    target = replace(case.target, release="", python=None)
    others = (case.role, case.workload.model.name, case.workload.name, target.compute_hash())
    return canonical_json(others)


def order_releases(results: Sequence[CaseResult]) -> dict[str, tuple[str, ...]]:
    """Releases of each engine: one that is compared with another comes after it, else by number.

    Returns:
        Engine name -> its releases' labels, engines by name.
    """
    found: dict[str, set[str]] = {}
    before: dict[tuple[str, str], set[str]] = {}
    for result in results:
        engine, release = result.case.target.engine, release_of(result.case.target)
        found.setdefault(engine, set()).add(release)
        if result.case.role == "release":
            earlier = release_of(result.case.baseline)
            found[engine].add(earlier)
            before.setdefault((engine, release), set()).add(earlier)
    return {engine: _chain(engine, found[engine], before) for engine in sorted(found)}


def _chain(
    engine: str, releases: set[str], before: dict[tuple[str, str], set[str]]
) -> tuple[str, ...]:
    left = sorted(releases, key=_natural)
    done: list[str] = []
    while left:
        ready = (r for r in left if not before.get((engine, r), set()) & set(left))
        done.append(next(ready, left[0]))
        left.remove(done[-1])
    return tuple(done)


def _natural(label: str) -> list[tuple[int, int, str]]:
    """`0.9.0` before `0.28.0`."""
    parts = re.findall(r"\d+|\D+", label)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]
