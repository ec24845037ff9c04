"""Pairs every setting with its baseline, and puts the cases that guard the session before them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.core import (
    Case,
    Expectation,
    Json,
    OffloadConfig,
    Plan,
    PlannedCase,
    Role,
    RunKey,
    Setting,
    Skipped,
    Tier,
    Workload,
)

from .capability import unsupported_reason
from .placement import expect
from .ranks import count_ranks

CONTROL_FAULT = "host-copy-damaged"
"""The fault every session plants once: it must FAIL."""


def build_plan(
    settings: Sequence[Setting],
    workloads: Sequence[Workload],
    *,
    faults: Sequence[str] = (),
    controls: bool = True,
    tier: Tier = Tier.EXACT,
    supports: Mapping[str, Json] | None = None,
) -> Plan:
    """Plan every setting against the same setting without offload, on every workload.

    In order: a null case for each distinct baseline, V1 against V2 without offload where both
    occur, each release against the one before it, a control with a planted fault, then the targets
    as given. V1 against V2 and the control come once for each release. A setting without offload
    is a baseline and adds no target; a setting given twice is planned once.

    Args:
        settings: targets.
        workloads: what each is asked.
        faults: planted in every target, never in a baseline or control.
        controls: adds the null cases and the control.
        tier: how equal the outputs of targets and of the runner case must be.
        supports: the engine's own statement, as `unsupported_reason` takes it; cases it rules out
            become `Plan.unsupported`, and guards that it rules out are left out.

    Raises:
        SettingError: a model has no placement arithmetic.
    """
    unique = list({s.compute_hash(): s for s in settings}.values())
    baselines = _baselines(unique)
    targets = [s for s in unique if not s.is_baseline]

    def can(setting: Setting, work: Workload) -> bool:
        return supports is None or not unsupported_reason(setting, work.model, supports)

    planned: list[PlannedCase] = []
    if controls:
        planned += [_build_null(b, w) for w in workloads for b in baselines if can(b, w)]
    planned += [
        build_pair(*pair, w, tier=tier, role="runner")
        for w in workloads
        for same in _by_release(baselines)
        for pair in _runner_pairs([b for b in same if can(b, w)]) or _runner_pairs(same)
    ]
    planned += release_pairs(unique, workloads)
    if controls:
        for candidates in _by_release([*targets, *map(offload_whole, baselines)]):
            planned += _build_control(candidates, workloads, can)
    for workload in workloads:
        for setting in targets:
            new = tuple(name for name in faults if name not in setting.faults)
            target = replace(setting, faults=(*setting.faults, *new))
            planned.append(build_pair(setting.baseline(), target, workload, tier=tier))
    return sort_out(with_unique_ids(planned), supports)


def release_pairs(settings: Sequence[Setting], workloads: Sequence[Workload]) -> list[PlannedCase]:
    """Plan each release of an engine against its release before, both without offload.

    The settings' baselines that differ in nothing but release and interpreter are paired: runner,
    execution mode and process mode stay. Releases are ordered as they first occur; one that lacks
    such a baseline is passed over. `build_plan` adds these pairs itself when it is given several
    releases, so a caller that plans release by release adds them once, from all settings.

    Raises:
        SettingError: a model has no placement arithmetic.
    """
    chains: dict[str, dict[str, Setting]] = {}
    for each in itertools.chain(*_by_release(_baselines(settings))):
        same = replace(each, release="", python=None).compute_hash()
        chains.setdefault(same, {}).setdefault(_release(each), each)
    return [
        build_pair(before, after, work, tier=Tier.LOGPROB, role="release")
        for work in workloads
        for chain in chains.values()
        for before, after in itertools.pairwise(chain.values())
    ]


def _baselines(settings: Sequence[Setting]) -> list[Setting]:
    return list({b.compute_hash(): b for b in (s.baseline() for s in settings)}.values())


def _by_release(settings: Sequence[Setting]) -> list[list[Setting]]:
    """The settings of each engine and release, in the order they first occur."""
    groups: dict[tuple[str, str], list[Setting]] = {}
    for each in settings:
        groups.setdefault((each.engine, _release(each)), []).append(each)
    return list(groups.values())


def _release(setting: Setting) -> str:
    """What tells releases of one engine apart: the label, else the interpreter."""
    return setting.release or setting.python or ""


def offload_whole(setting: Setting) -> Setting:
    """The setting made to offload, for a control where nothing else does; its switches stay."""
    if setting.engine == "accelerate":
        return replace(setting, offload=OffloadConfig(offload_backend="cpu_offload"))
    pin_memory, uva = setting.offload.pin_memory, setting.offload.uva
    asked = OffloadConfig(cpu_offload_gb=1, pin_memory=pin_memory, uva=uva)
    return replace(setting, offload=asked)


def build_pair(
    baseline: Setting,
    target: Setting,
    workload: Workload,
    *,
    tier: Tier = Tier.EXACT,
    role: Role = "case",
) -> PlannedCase:
    """Plan one comparison of any two settings; both sides get their expectation.

    Two equal settings are planned as they are: outside a null case the judges say what such a
    comparison is worth.

    Raises:
        SettingError: the model has no placement arithmetic.
    """
    prefix = "" if role == "case" else f"{role}-"
    sides = f"{baseline.setting_id}..{target.setting_id}"
    case = Case(
        case_id=f"{prefix}{workload.model.name}/{workload.name}/{sides}",
        baseline=baseline,
        target=target,
        workload=workload,
        tier=tier,
        role=role,
        expected=expect(target, workload.model),
        expected_baseline=expect(baseline, workload.model),
        expected_ranks=_expect_ranks(target, workload),
        expected_baseline_ranks=_expect_ranks(baseline, workload),
        axes=_axes(target, workload),
        must_fail=_must_fail(target) if role == "control" else (),
    )
    return PlannedCase(
        case=case,
        baseline_key=RunKey(setting=baseline, workload=workload),
        target_key=RunKey(setting=target, workload=workload, repeat=int(role == "null")),
    )


def _expect_ranks(setting: Setting, workload: Workload) -> tuple[Expectation, ...]:
    """What further ranks must show."""
    ranks = range(1, count_ranks(setting))
    return tuple(expect(setting, workload.model, rank=rank) for rank in ranks)


def _build_null(baseline: Setting, workload: Workload) -> PlannedCase:
    return build_pair(baseline, baseline, workload, role="null")


def _runner_pairs(baselines: Sequence[Setting]) -> list[tuple[Setting, Setting]]:
    """The first V1 and V2 baselines that differ in nothing else, if there are such."""
    for baseline in baselines:
        twin = replace(baseline, runner="v2")
        if baseline.runner == "v1" and twin in baselines:
            return [(baseline, twin)]
    return []


def _build_control(
    candidates: Sequence[Setting], workloads: Sequence[Workload], can: Callable[..., bool]
) -> Iterator[PlannedCase]:
    """The first candidate that can run and offloads anything, with damage no judge may miss."""
    for workload in workloads:
        for setting in candidates:
            if can(setting, workload) and expect(setting, workload.model).offloaded_bytes:
                damaged = replace(setting, faults=(CONTROL_FAULT,))
                yield build_pair(setting.baseline(), damaged, workload, role="control")
                return


def _must_fail(setting: Setting) -> tuple[str, ...]:
    """The judges that see wrong weights, as far as the setting lets them look."""
    is_hashed = any(name.startswith("integrity") for name in setting.instruments)
    return ("tokens", "integrity") if is_hashed else ("tokens",)


def _axes(setting: Setting, workload: Workload) -> dict[str, str]:
    offload = setting.offload
    return {
        "model": workload.model.name,
        "runner": setting.runner or "auto",
        "backend": offload.resolved_backend,
        "offload": offload.offload_id,
        "pin": _switch(is_on=offload.pin_memory),
        "uva": _switch(is_on=offload.uva),
        "multiprocessing": _switch(is_on=setting.multiprocessing),
        "server": _switch(is_on=setting.server),
        "eager": _switch(is_on=setting.enforce_eager),
        "engine": setting.engine,
        **({"release": setting.release} if setting.release else {}),
        **({"stand_in_for": other} if (other := workload.model.stand_in_for) else {}),
    }


def _switch(*, is_on: bool) -> str:
    return "on" if is_on else "off"


def with_unique_ids(planned: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Settings whose readable ids coincide get their hash behind the case id."""
    seen: set[str] = set()
    named = []
    for each in planned:
        case = each.case
        if case.case_id in seen:
            suffix = f"{case.baseline.compute_hash()[:6]}{case.target.compute_hash()[:6]}"
            case = replace(case, case_id=f"{case.case_id}~{suffix}")
        assert case.case_id not in seen, f"case id {case.case_id!r} is not unique"
        seen.add(case.case_id)
        named.append(replace(each, case=case))
    return named


def sort_out(planned: Sequence[PlannedCase], supports: Mapping[str, Json] | None) -> Plan:
    """A plan of these cases, with those that the engine's statement rules out set apart.

    Args:
        planned: cases of one engine.
        supports: its own statement, as `unsupported_reason` takes it; None rules nothing out.
    """
    runnable, skipped = [], []
    for each in planned:
        case = each.case
        sides = (case.baseline, case.target) if supports is not None else ()
        reasons = (unsupported_reason(s, case.workload.model, supports or {}) for s in sides)
        reason = next((text for text in reasons if text), None)
        if reason:
            skipped.append(Skipped(case=case, reason=reason))
        else:
            runnable.append(each)
    return Plan(cases=tuple(runnable), unsupported=tuple(skipped))
