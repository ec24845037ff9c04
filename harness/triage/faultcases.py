"""Which comparisons put a fault to the test: every runner, mode and schedule where it applies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from harness.core import Plan, PlannedCase, Runner, Setting, Workload
from harness.core.setting import DEFAULT_INSTRUMENTS
from harness.faults import FAULTS, Fault, Mode
from harness.plan import build_pair
from harness.settings import load_model, load_workload

INSTRUMENTS = ("ordering", "integrity")
NUM_PROMPTS, NUM_TOKENS = 4, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One comparison of a clean engine without offload and a faulty one with it."""

    fault: Fault
    runner: Runner | None
    """None of an engine that has no runners."""
    mode: Mode
    schedule: str
    planned: PlannedCase


@cache
def load_fault_workload(model: str, name: str = "default") -> Workload:
    """A lifecycle as it is; of the default workload the first prompts, with few new tokens."""
    whole = load_workload(name, load_model(model))
    if whole.is_lifecycle:
        return whole
    return replace(
        whole,
        name="faults",
        prompt_token_ids=whole.prompt_token_ids[:NUM_PROMPTS],
        sampling_params=replace(whole.sampling_params, max_tokens=NUM_TOKENS),
    )


def build_setting(
    fault: Fault | None, runner: Runner | None, mode: Mode, schedule: str = "in_order"
) -> Setting:
    """The setting of one trial; `mode` none without a fault gives a baseline."""
    from harness.faults import OFFLOADS

    engine = "reference" if fault is None else engine_of(fault)
    return Setting(
        engine=engine,
        runner=runner,
        offload=fault.offload(mode) if fault is not None else OFFLOADS[mode],
        engine_args={} if schedule == "in_order" else {"schedule": schedule},
        enforce_eager=fault is None or fault.enforce_eager,
        instruments=DEFAULT_INSTRUMENTS.get(engine, INSTRUMENTS),
        faults=() if fault is None else (fault.name,),
    )


def engine_of(fault: Fault) -> str:
    """The engine to try a fault in: the embedded one if it can be."""
    return "reference" if "reference" in fault.engines else fault.engines[0]


def plan_trials(fault: Fault, judges: Sequence[str] = ()) -> tuple[Trial, ...]:
    """Every trial of one fault; none of a fault that cannot run yet.

    Args:
        fault: mutant or equivalent.
        judges: only these are asked; empty asks all.
    """
    if fault.needs:
        return ()
    workload = load_fault_workload(fault.model, fault.workload)
    trials = []
    engine = engine_of(fault)
    runners: tuple[Runner | None, ...] = (None,) if engine == "accelerate" else fault.runners
    for mode in fault.modes_in(engine):
        for runner in runners:
            for schedule in fault.schedules:
                target = build_setting(fault, runner, mode, schedule)
                planned = limit_judges(build_pair(target.baseline(), target, workload), judges)
                trials.append(
                    Trial(fault=fault, runner=runner, mode=mode, schedule=schedule, planned=planned)
                )
    return tuple(trials)


def limit_judges(planned: PlannedCase, judges: Sequence[str]) -> PlannedCase:
    """The same case with only some of its judges asked; no name keeps all."""
    if not judges:
        return planned
    return replace(planned, case=replace(planned.case, judges=tuple(judges)))


def describe_doubt(faults: Sequence[str], plan: Plan) -> list[str]:
    """A line for each fault that is known to show on another model or workload only."""
    usual = {field.name: field.default for field in fields(Fault)}
    lines = []
    for fault in map(FAULTS.get, faults):
        works = [planned.case.workload for planned in plan.cases]
        places = [("model", {work.model.name for work in works})]
        places.append(("workload", {work.name for work in works}))
        lines += [
            f"fault {fault.name!r} is known to show with {what} {getattr(fault, what)} only: "
            "elsewhere it may never act, and a PASS then says nothing of the judges"
            for what, found in places
            if getattr(fault, what) not in (usual[what], *found)
        ]
    return lines
