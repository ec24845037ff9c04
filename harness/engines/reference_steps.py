"""Lifecycle steps of the reference engine, its answers, and what its errors mean to the harness."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from harness import refengine
from harness.core import HarnessError, Json, Logprobs, MemoryTrace, RequestOutput, Step, decode

from .base import EngineOutOfMemory, EngineRefused
from .patches import check_held


class Driver(Protocol):
    """What a step needs of the adapter."""

    def started(self) -> refengine.LLM:
        """The live engine."""
        ...

    def ask(self, abort_at_end: Collection[int] = ()) -> list[refengine.RequestOutput]:
        """Its answers to all prompts of the workload."""
        ...

    def rpc(self, method: str, *args: Json) -> Json:
        """Call a method of the worker."""
        ...


@contextmanager
def told_apart() -> Iterator[None]:
    """Turn the engine's own refusals and its want of memory into the harness's.

    Raises:
        EngineRefused: it refused what it was asked.
        EngineOutOfMemory: the device could not hold it.
    """
    try:
        yield
    except refengine.OutOfDeviceMemoryError as error:
        raise EngineOutOfMemory(str(error)) from error
    except refengine.ConfigError as error:
        raise EngineRefused(str(error)) from error


def take_step(driver: Driver, step: Step) -> None:
    """Do a step that is not `generate`.

    Raises:
        EngineRefused: the engine has no such step, or the step lacks an argument or has one more.
        HarnessError: what the step was to bring about did not happen.
    """
    if step.kind not in STEPS:
        raise EngineRefused(f"step kind={step.kind!r} must be one of {', '.join(sorted(STEPS))}")
    needed, call = STEPS[step.kind]
    known = {*needed, *OPTIONAL.get(step.kind, ())}
    if unknown := sorted(set(step.args) - known):
        raise EngineRefused(f"step {step.kind!r} has no argument {unknown[0]!r}: {sorted(known)}")
    if missing := [name for name in needed if name not in step.args]:
        raise EngineRefused(f"step {step.kind!r} needs the argument {missing[0]!r}")
    call(driver, step.args)


def to_output(answer: refengine.RequestOutput, step_idx: int) -> RequestOutput:
    """The engine's answer as the harness keeps it."""
    rows = answer.logprobs
    return RequestOutput(
        request_id=answer.request_id,
        step_idx=step_idx,
        prompt_token_ids=tuple(answer.prompt_token_ids),
        token_ids=tuple(answer.token_ids),
        logprobs=None if rows is None else decode(Logprobs, asdict(rows)),
        finish_reason=answer.finish_reason,
        text=answer.text,
    )


def read_leftover(stats: Mapping[str, Any]) -> MemoryTrace:
    """What a device that was given back still counts, host memory of any kind included."""
    return MemoryTrace(
        device_bytes=stats["device"]["current"],
        device_peak_bytes=stats["device"]["peak"],
        device_capacity_bytes=stats["capacity"],
        pinned_bytes=stats["pinned"]["current"],
        host_bytes=stats["host"]["current"],
        by_kind=stats["device"]["by_kind"],
    )


def _reload(driver: Driver, args: Mapping[str, Any]) -> None:
    driver.rpc("harness_reload", args["path"], "weights_path")


def _patch(driver: Driver, args: Mapping[str, Any]) -> None:
    check_held(driver.started().collective_rpc, args["params"])
    driver.rpc("harness_patch", args["seed"], args["num_values"], list(args["params"]))


def _sleep(driver: Driver, args: Mapping[str, Any]) -> None:
    driver.started().sleep(args["level"])


def _wake_up(driver: Driver, args: Mapping[str, Any]) -> None:
    tags = args.get("tags")
    driver.started().wake_up(None if tags is None else list(tags))


def _fail_forward(driver: Driver, args: Mapping[str, Any]) -> None:
    """What compute read before it broke off is left out: the step's weights are those at rest."""
    driver.rpc("fail_next_forward", args["layer"])
    try:
        driver.ask()
    except refengine.ForwardError:
        driver.rpc("harness_step")
        return
    raise HarnessError(f"step 'fail_forward': no forward failed in layer {args['layer']}")


def _abort_request(driver: Driver, _args: Mapping[str, Any]) -> None:
    reasons = [answer.finish_reason for answer in driver.ask(abort_at_end=(0,))]
    if reasons[0] != "abort" or "abort" in reasons[1:]:
        raise HarnessError(f"step 'abort_request': the first of {reasons} alone must be 'abort'")


STEPS: Mapping[str, tuple[tuple[str, ...], Callable[[Driver, Mapping[str, Any]], None]]] = {
    "reload_weights": (("path",), _reload),
    "apply_sparse_weight_patches": (("seed", "num_values", "params"), _patch),
    "sleep": (("level",), _sleep),
    "wake_up": ((), _wake_up),
    "fail_forward": (("layer",), _fail_forward),
    "abort_request": ((), _abort_request),
}
"""Kind of step -> arguments it needs, and how it is done."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {"reload_weights": ("label",), "wake_up": ("tags",)}
"""Arguments that a step may have besides."""
