"""The functions a test calls, with the signatures vLLM's own tests use.

`compare_two_settings` and `compare_all_settings` launch, judge and record; a comparison that does
not pass raises a subclass of AssertionError that carries the whole result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.core import (
    CaseResult,
    ComparisonError,
    ComparisonErrored,
    ComparisonFailed,
    ComparisonUnsupported,
    ComparisonVacuous,
    Plan,
    PlannedCase,
    Setting,
    SettingError,
    Tier,
    UsageError,
    Verdict,
    Workload,
)
from harness.interpreters import choose_interpreter
from harness.outputs import check_logprobs_close, check_outputs_equal
from harness.pipeline import Options, Session
from harness.plan import build_pair, expect
from harness.plan.build import CONTROL_FAULT, offload_whole
from harness.settings import load_model, load_workload, parse_engine_args
from harness.triage.attribution import attribute_results

if TYPE_CHECKING:
    from harness.record import Session as RecordedSession

Env = Mapping[str, str | None]
Method = Literal["generate", "generate_close"]
METHODS = {"generate": Tier.EXACT, "generate_close": Tier.LOGPROB}

ERRORS: dict[Verdict, type[ComparisonError]] = {
    Verdict.FAIL: ComparisonFailed,
    Verdict.VACUOUS: ComparisonVacuous,
    Verdict.UNSUPPORTED: ComparisonUnsupported,
    Verdict.ERROR: ComparisonErrored,
}


def compare_two_settings(
    model: str,
    arg1: Sequence[str],
    arg2: Sequence[str],
    env1: Env | None = None,
    env2: Env | None = None,
    *,
    method: Method = "generate",
    max_wait_seconds: float | None = None,
    force_v1_runner: bool = False,
    engine: str = "reference",
    python: str | None = None,
    workload: str = "default",
    dtype: str | None = None,
    controls: bool = True,
    reports_dir: str | Path | None = None,
    session: Session | None = None,
) -> CaseResult:
    """Run a model under two settings and prove the second right against the first.

    Args:
        model: a name from models.yaml, an alias, a checkpoint folder or a hub id.
        arg1: the baseline's engine arguments, as command-line strings.
        arg2: the target's.
        env1: the baseline's further environment; a value of None unsets.
        env2: the target's.
        method: `generate` wants every token equal; `generate_close` allows a near-tie.
        max_wait_seconds: deadline of each launch, seconds.
        force_v1_runner: pins both sides to runner V1; an environment against it is an error.
        engine: name of the engine under test.
        python: interpreter that has it, `PATH` or `LABEL=PATH`; None is this one.
        workload: name of the prompt set.
        dtype: computes in this dtype instead of the model's own.
        controls: adds the null case, and a planted fault where the target offloads.
        reports_dir: folder that receives the record.
        session: an open session to share runs with; the caller closes it.

    Returns:
        The case's result, verdict PASS.

    Raises:
        ComparisonError: an AssertionError; its subclass names the verdict.
        UsageError: an argument is unknown, impossible or contradicts another.
    """
    results = compare_all_settings(
        model,
        [arg1, arg2],
        [env1, env2],
        method=method,
        max_wait_seconds=max_wait_seconds,
        force_v1_runner=force_v1_runner,
        engine=engine,
        python=python,
        workload=workload,
        dtype=dtype,
        controls=controls,
        reports_dir=reports_dir,
        session=session,
    )
    return results[0]


def compare_all_settings(
    model: str,
    all_args: Sequence[Sequence[str]],
    all_envs: Sequence[Env | None],
    *,
    method: Method = "generate",
    max_wait_seconds: float | None = None,
    force_v1_runner: bool = False,
    engine: str = "reference",
    python: str | None = None,
    workload: str = "default",
    dtype: str | None = None,
    controls: bool = True,
    reports_dir: str | Path | None = None,
    session: Session | None = None,
) -> list[CaseResult]:
    """Compare every setting after the first with the first; index 0 is the reference.

    Arguments are those of `compare_two_settings`, lists in place of pairs.

    Returns:
        One result for each setting after the first, all PASS.

    Raises:
        ComparisonError: the first comparison that did not pass, after all have been judged.
        UsageError: the lists differ in length, or an entry cannot be run.
    """
    if method not in METHODS:
        raise UsageError(f"method={method!r} is not known; known: {', '.join(METHODS)}")
    if len(all_args) != len(all_envs) or len(all_args) < 2:
        raise UsageError(
            f"{len(all_args)} argument lists and {len(all_envs)} environments were given; "
            "give as many of each, at least two"
        )
    runner: Literal["v1"] | None = "v1" if force_v1_runner else None
    place = choose_interpreter(engine, python, option="python")
    settings = [
        replace(parse_engine_args(args, env, engine=engine, force_runner=runner), **place)
        for args, env in zip(all_args, all_envs, strict=True)
    ]
    work = load_workload(workload, load_model(model, dtype=dtype))
    plan = plan_comparison(settings, work, tier=METHODS[method], controls=controls)
    if session is not None:
        given = {"max_wait_seconds": max_wait_seconds, "reports_dir": reports_dir}
        if ignored := [f"{name}={value!r}" for name, value in given.items() if value is not None]:
            raise UsageError(
                f"{' and '.join(ignored)} given together with session=: the session decides "
                "both; leave it out, or give Session(reports_dir, options=Options(deadline_s=...))"
            )
        return _check(*_compare(session, plan))
    if max_wait_seconds is not None and max_wait_seconds <= 0:
        raise UsageError(f"max_wait_seconds={max_wait_seconds!r} must be > 0 (seconds)")
    options = Options(deadline_s=max_wait_seconds or Options().deadline_s)
    with Session(Path(reports_dir or "reports"), manifest={"door": "api"}, options=options) as own:
        judged = _compare(own, plan)
        own.finish(controls=controls)
    return _check(*judged)


def plan_comparison(
    settings: Sequence[Setting], workload: Workload, *, tier: Tier, controls: bool
) -> Plan:
    """Pair every later setting with the first, the null case and a planted fault before them."""
    baseline, *targets = settings
    pairs = [build_pair(baseline, target, workload, tier=tier) for target in targets]
    if controls:
        pairs = [*plan_controls(baseline, targets, workload), *pairs]
    return Plan(cases=tuple(pairs))


def plan_controls(
    baseline: Setting, targets: Sequence[Setting], workload: Workload
) -> tuple[PlannedCase, PlannedCase]:
    """The two cases that guard a comparison: the null case, and one that must FAIL.

    The fault is planted in the first target that offloads anything, else in the baseline, which
    is made to offload where it does not: every invocation must show that it can fail.

    Returns:
        The null case of `baseline`, and the control against it.

    Raises:
        SettingError: the model has no placement arithmetic.
    """
    sides = [*targets, baseline]
    offloading = [s for s in sides if expect(s, workload.model).offloaded_bytes]
    if not offloading:
        offloading = [offload_whole(baseline)]
    damaged = replace(offloading[0], faults=(CONTROL_FAULT,))
    return (
        build_pair(baseline, baseline, workload, role="null"),
        build_pair(baseline, damaged, workload, role="control"),
    )


def assert_result(result: CaseResult, note: str | None = None) -> CaseResult:
    """Return `result` when it passed, else raise the error that names its verdict, and `note`."""
    if result.verdict is Verdict.PASS:
        return result
    lead = result.lead
    text = f"{result.verdict.value}: {result.case.anchor}: {lead.summary if lead else 'no finding'}"
    raise ERRORS[result.verdict](f"{text} {note}" if note else text, result)


def assert_guard(control: CaseResult) -> None:
    """Raise where a null case or a control is not as it must be, whatever its verdict.

    Raises:
        ComparisonErrored: nothing that this session compared is proven.
    """
    if not control.behaved:
        lead = control.lead
        missed = " and ".join(control.not_failed)
        wanted = "PASS" if control.case.role == "null" else f"FAIL{missed and f' by {missed}'}"
        raise ComparisonErrored(
            f"ERROR: the {control.case.role} case gave {control.verdict.value}, not {wanted}"
            f" ({lead.summary if lead else 'no finding'}): this session proves nothing",
            control,
        )


def attribute_failures(results: Sequence[CaseResult], session: Session) -> dict[str, str]:
    """Run the missing controls of every FAIL in several axes; one sentence each, by case id."""
    notes = attribute_results(results, pair=build_pair, look=session.look)
    if notes:
        session.recorder.update_manifest(attributed=notes)
    return notes


def _compare(session: Session, plan: Plan) -> tuple[list[CaseResult], dict[str, str]]:
    """Run a plan inside a session; what a FAIL is attributed to, by case id."""
    results = [
        session.compare_once(p) if p.case.role in ("null", "control") else session.compare(p)
        for p in plan.cases
    ]
    return results, attribute_failures(results, session)


def _check(results: Sequence[CaseResult], notes: Mapping[str, str]) -> list[CaseResult]:
    """The cases; raise for the first one, or control, that is not right."""
    cases = [r for r in results if r.counts]
    for result in cases:
        note = notes.get(result.case.case_id)
        assert_result(result, note and f"Attributed: {note}")
    for result in results:
        assert_guard(result)
    return cases


def load_run(path: str | Path = "reports") -> RecordedSession:
    """Load a recorded session; `.frame()` gives a pandas frame, a row for each case.

    Args:
        path: a session's folder, or the reports folder (its latest session).

    Raises:
        RecordError: there is no session, or it is damaged.
    """
    from harness.record import load_session

    return load_session(Path(path))


__all__ = [
    "SettingError",
    "assert_guard",
    "attribute_failures",
    "assert_result",
    "check_logprobs_close",
    "check_outputs_equal",
    "compare_all_settings",
    "compare_two_settings",
    "load_run",
    "plan_comparison",
    "plan_controls",
]
