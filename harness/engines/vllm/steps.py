"""Lifecycle steps of vLLM: what each release calls them, and what of them its live worker has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from harness.core import Json, Step, Workload
from harness.engines.base import EngineRefused, EngineView, InternalMovedError
from harness.engines.patches import check_held

from .modules import VllmModules

WEIGHT_ARGUMENTS = ("weights_path", "path", "model_path")
"""Names of the checkpoint's argument of `reload_weights`, of any release, the usual one first."""
ASK = "harness.engines.vllm.steps:arguments_of"


class Door(Protocol):
    """What a step needs of a running vLLM."""

    def rpc(self, method: str, args: Sequence[Json]) -> list[Json]:
        """Every rank's answer."""
        ...

    def sleep(self, level: int) -> None:
        """Put weights away."""
        ...

    def wake_up(self, tags: list[str] | None) -> None:
        """Bring them back."""
        ...

    def forget_prefixes(self) -> None:
        """Drop cached keys and values, which were computed with the weights before."""
        ...


def refuse_behind_server(workload: Workload) -> None:
    """Refuse what is done in process only.

    Raises:
        EngineRefused: naming the first such step.
    """
    for step in workload.steps:
        if step.kind in STEPS:
            raise EngineRefused(f"step {step.name!r} is done in process only, not by a server")


def take_step(door: Door, step: Step) -> None:
    """Do a step that is not `generate`.

    Raises:
        EngineRefused: this release's worker has no such method.
    """
    STEPS[step.kind](door, step.args)


def arguments_of(view: EngineView, method: str) -> str:
    """Argument names of the worker's method, with commas; empty if it has no such method.

    A method that passes all it is given on to the runner's has the runner's arguments.

    Raises:
        InternalMovedError: it passes them on to a method that is not there.
    """
    if not callable(getattr(view.worker, method, None)):
        return ""
    for owner in _owners(view):
        found = getattr(owner, method, None)
        if found is None:
            raise InternalMovedError(f"{type(owner).__name__}.{method}")
        named = [
            p.name
            for p in inspect.signature(found).parameters.values()
            if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if named:
            return ",".join(named)
    raise InternalMovedError(f"arguments of {type(view.worker).__name__}.{method}")


def _owners(view: EngineView) -> Iterator[object]:
    """Who may hold the method itself: V2 of some releases hands it to the class of V1."""
    yield view.worker
    yield view.runner
    yield VllmModules().module("runner.v1").GPUModelRunner


def _reload(door: Door, args: Mapping[str, Any]) -> None:
    known = _ask(door, "reload_weights")
    name = next((each for each in WEIGHT_ARGUMENTS if each in known), None)
    if name is None:
        raise EngineRefused(
            f"reload_weights({', '.join(known)}) of this release takes no path of a checkpoint"
        )
    door.rpc("harness_reload", (args["path"], name))
    door.forget_prefixes()
    door.rpc("harness_asleep", (False,))


def _patch(door: Door, args: Mapping[str, Any]) -> None:
    _ask(door, "apply_sparse_weight_patches")
    check_held(door.rpc, args["params"])
    given = (args["seed"], args["num_values"], list(args["params"]))
    door.rpc("harness_patch", given)
    door.forget_prefixes()


def _ask(door: Door, method: str) -> list[str]:
    """Argument names of a method of the live worker."""
    known = str(door.rpc("harness_ask", (ASK, method))[0])
    if not known:
        raise EngineRefused(f"the worker of this release has no method {method}")
    return known.split(",")


def _sleep(door: Door, args: Mapping[str, Any]) -> None:
    """Weights discarded at level 2 stay away until they are loaded again, also once awake."""
    door.sleep(args["level"])
    if args["level"] == 2 and any(door.rpc("harness_ask", (f"{__name__}:is_unmapped",))):
        door.rpc("harness_asleep", (True,))


def is_unmapped(view: EngineView) -> bool:
    """Whether weights have no memory behind them."""
    return view.is_asleep


def _wake_up(door: Door, args: Mapping[str, Any]) -> None:
    tags = args.get("tags")
    door.wake_up(None if tags is None else list(tags))


STEPS: Mapping[str, Callable[[Door, Mapping[str, Any]], None]] = {
    "reload_weights": _reload,
    "apply_sparse_weight_patches": _patch,
    "sleep": _sleep,
    "wake_up": _wake_up,
}
"""Kind of step -> how it is done."""
