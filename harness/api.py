"""The functions a test calls, with the signatures vLLM's own tests use.

`compare_two_settings` and `compare_all_settings` launch, judge and record; a comparison that does
not pass raises a subclass of AssertionError that carries the whole result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    Setting,
    SettingError,
    Tier,
    UsageError,
    Verdict,
    Workload,
)
from harness.pipeline import Options, Session
from harness.plan import build_pair, build_plan
from harness.settings import load_model, load_workload, parse_engine_args
from harness.triage.attribution import attribute

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
    workload: str = "default",
    dtype: str | None = None,
    controls: bool = True,
    reports_dir: str | Path = "reports",
    session: Session | None = None,
) -> CaseResult:
    """Run a model under two settings and prove the second right against the first.

    Args:
        model: a name from models.yaml, an alias, a checkpoint folder or a hub id.
        arg1: the baseline's engine arguments, as command-line strings.
        arg2: the target's.
        env1: the baseline's further environment; a value of None unsets.
        env2: the target's.
        method: `generate` wants every token equal; `generate_close` allows a first difference at
            a near-tie.
        max_wait_seconds: deadline of each launch, seconds.
        force_v1_runner: pins both sides to runner V1; an environment that says otherwise is an
            error, never a silent override.
        engine: name of the engine under test.
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
    workload: str = "default",
    dtype: str | None = None,
    controls: bool = True,
    reports_dir: str | Path = "reports",
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
    settings = [
        parse_engine_args(list(args), env, engine=engine, force_runner=runner)
        for args, env in zip(all_args, all_envs, strict=True)
    ]
    work = load_workload(workload, load_model(model, dtype=dtype))
    plan = plan_comparison(settings, work, tier=METHODS[method], controls=controls)
    if session is not None:
        return _check(session, plan)
    if max_wait_seconds is not None and max_wait_seconds <= 0:
        raise UsageError(f"max_wait_seconds={max_wait_seconds!r} must be > 0 (seconds)")
    options = Options(deadline_s=max_wait_seconds or Options().deadline_s)
    with Session(Path(reports_dir), manifest={"door": "api"}, options=options) as own:
        try:
            return _check(own, plan)
        finally:
            own.finish()


def plan_comparison(
    settings: Sequence[Setting], workload: Workload, *, tier: Tier, controls: bool
) -> Plan:
    """Pair every later setting with the first, the null case and a planted fault before them."""
    baseline = settings[0]
    pairs = [replace(build_pair(baseline, target, workload, tier=tier)) for target in settings[1:]]
    extra = []
    if controls:
        offloading = [s for s in settings if not s.offload.is_none][:1]
        whole = build_plan(offloading or [baseline], [workload], controls=True)
        extra = [p for p in whole.cases if p.case.role in ("null", "control")]
    return Plan(cases=(*extra, *pairs))


def assert_result(result: CaseResult, note: str | None = None) -> CaseResult:
    """Return `result` when it passed, else raise the error that names its verdict, and `note`."""
    if result.verdict is Verdict.PASS:
        return result
    lead = result.lead
    text = f"{result.verdict.value}: {result.case.anchor}: {lead.summary if lead else 'no finding'}"
    raise ERRORS[result.verdict](f"{text} {note}" if note else text, result)


def _check(session: Session, plan: Plan) -> list[CaseResult]:
    """Run a plan inside a session; raise for the first case, or control, that is not right."""
    results = [session.compare(planned) for planned in plan.cases]
    cases = [r for r in results if r.counts]
    for result in cases:
        case, note = result.case, None
        if result.verdict is Verdict.FAIL:
            note = attribute(
                case.baseline, case.target, case.workload, pair=build_pair, look=session.look
            )
        assert_result(result, note and f"Attributed: {note}")
    for control in results:
        if not control.behaved:
            lead = control.lead
            raise ComparisonErrored(
                f"ERROR: the {control.case.role} case gave {control.verdict.value}"
                f" ({lead.summary if lead else 'no finding'}): this session proves nothing",
                control,
            )
    return cases


def check_outputs_equal(
    *,
    outputs_0_lst: Iterable[tuple[Sequence[int], str]],
    outputs_1_lst: Iterable[tuple[Sequence[int], str]],
    name_0: str,
    name_1: str,
) -> None:
    """Assert that two lists of (token ids, text) are equal, prompt by prompt.

    Raises:
        ComparisonFailed: naming the prompt, the position and both tokens.
        ComparisonVacuous: there was nothing to compare.
    """
    pairs = list(zip(outputs_0_lst, outputs_1_lst, strict=True))
    if not pairs:
        raise ComparisonVacuous("VACUOUS: no output was given: nothing was compared")
    for index, ((ids_0, text_0), (ids_1, text_1)) in enumerate(pairs):
        if list(ids_0) != list(ids_1):
            common = min(len(ids_0), len(ids_1))
            at = next((i for i in range(common) if ids_0[i] != ids_1[i]), common)
            raise ComparisonFailed(
                f"FAIL: prompt {index} differs at token {at}: {name_0} gave "
                f"{list(ids_0[at : at + 1])} in {text_0!r:.80}, {name_1} gave "
                f"{list(ids_1[at : at + 1])} in {text_1!r:.80}"
            )


Candidates = Sequence[Mapping[int, float]]


def check_logprobs_close(
    *,
    outputs_0_lst: Iterable[tuple[Sequence[int], str, Candidates]],
    outputs_1_lst: Iterable[tuple[Sequence[int], str, Candidates]],
    name_0: str,
    name_1: str,
) -> None:
    """Assert that at the first difference each side's token is among the other's candidates.

    Raises:
        ComparisonFailed: naming the prompt, the position and both tokens.
        ComparisonVacuous: there was nothing to compare.
    """
    pairs = list(zip(outputs_0_lst, outputs_1_lst, strict=True))
    if not pairs:
        raise ComparisonVacuous("VACUOUS: no output was given: nothing was compared")
    for index, ((ids_0, _, top_0), (ids_1, _, top_1)) in enumerate(pairs):
        for at, (token_0, token_1) in enumerate(zip(ids_0, ids_1, strict=False)):
            if token_0 == token_1:
                continue
            if token_0 not in top_1[at] or token_1 not in top_0[at]:
                raise ComparisonFailed(
                    f"FAIL: prompt {index} differs at token {at} beyond a near-tie: "
                    f"{name_0} gave {token_0}, {name_1} gave {token_1}"
                )
            break


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
    "assert_result",
    "check_logprobs_close",
    "check_outputs_equal",
    "compare_all_settings",
    "compare_two_settings",
    "load_run",
    "plan_comparison",
]
