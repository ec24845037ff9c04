"""Planting: before the engine is built, in this process; after, where its worker lives."""

from __future__ import annotations

from typing import Protocol

from harness.core import HarnessError, Json, Setting
from harness.engines.base import PLANTED, EngineModules, EngineView

from .base import FAULTS

PLANTER = "harness.faults:plant_in_worker"


class HasModules(Protocol):
    """What planting before the start needs."""

    modules: EngineModules


class Host(HasModules, Protocol):
    """The part of an engine that planting needs."""

    def rpc(self, method: str, *args: Json) -> Json:
        """Call a method of the harness's extension in the worker."""
        ...


def plant_before_start(setting: Setting, engine: HasModules) -> list[str]:
    """Plant those of the setting's faults that replace names in modules.

    Returns:
        A line for each fault dealt with here, or that does not apply.

    Raises:
        UsageError: a fault's name is unknown.
    """
    notes = []
    for name in setting.faults:
        fault = FAULTS.get(name)
        if reason := fault.why_not(setting):
            notes.append(f"fault {name} does not apply and changes nothing: {reason}")
        elif (replace_names := fault.before(setting.engine)) is not None:
            replace_names(engine.modules)
            PLANTED.append(name)
            notes.append(f"fault {name} is planted: {fault.summary}")
    return notes


def plant_after_start(setting: Setting, engine: Host) -> list[str]:
    """Plant the others in the live worker, and hold that the earlier ones reached it too.

    Raises:
        HarnessError: a fault that was planted before the start is not in the worker's process.
    """
    applying = [FAULTS.get(name) for name in applying_faults(setting)]
    notes = []
    for fault in applying:
        if fault.after_start is not None:
            done = engine.rpc("harness_fault", PLANTER, fault.name)
            notes.append(f"fault {fault.name} is planted: {done}")
    if applying:
        planted = engine.rpc("harness_planted")
        if missing := [fault.name for fault in applying if fault.name not in planted]:
            raise HarnessError(
                f"fault {missing[0]!r} did not reach the process of the engine core (it was "
                "spawned, not forked); use multiprocessing=False or num_threads=1"
            )
    return notes


def applying_faults(setting: Setting) -> tuple[str, ...]:
    """Names of those of the setting's faults that change anything under it."""
    return tuple(name for name in setting.faults if FAULTS.get(name).why_not(setting) is None)


def planted_faults(setting: Setting, engine: Host) -> tuple[str, ...]:
    """Names of those of the setting's faults that the live worker says are planted in it."""
    applying = applying_faults(setting)
    found = engine.rpc("harness_planted") if applying else []
    return tuple(name for name in applying if name in found)


def plant_in_worker(view: EngineView, name: str) -> str:
    """Plant one fault in the live engine of this process; returns what was done.

    Raises:
        HarnessError: there is nothing for the fault to act on, in rank 0: a further rank need not
            hold any.
    """
    fault = FAULTS.get(name)
    assert fault.after_start is not None, f"{name} is planted before the start"
    try:
        done = fault.after_start(view)
    except HarnessError as error:
        if not getattr(view.worker, "rank", 0):
            raise
        return str(error)
    PLANTED.append(name)
    return done
