"""What the judges said of a case, the verdict folded from it, and a session's outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from .case import Case, Tier
from .codec import SCHEMA_VERSION, Json
from .errors import ExitCode


class Verdict(Enum):
    """A judge's word, or a case's."""

    PASS = "PASS"
    FAIL = "FAIL"
    VACUOUS = "VACUOUS"
    UNSUPPORTED = "UNSUPPORTED"
    ERROR = "ERROR"


FOLD_ORDER = (Verdict.ERROR, Verdict.UNSUPPORTED, Verdict.FAIL, Verdict.VACUOUS, Verdict.PASS)
"""Within a case the first of these that any judge said is the verdict."""

EXIT_ORDER = (Verdict.FAIL, Verdict.ERROR, Verdict.VACUOUS)
"""Across cases the first of these that any case has decides the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first position at which two answers differ."""

    request_idx: int
    token_idx: int
    expected: int
    """The baseline's token id; -1 when its answer is shorter."""
    actual: int
    """The target's token id; -1 when its answer is shorter."""
    expected_logprob: float | None = None
    """The baseline's log-probability of its own token, nats."""
    actual_logprob: float | None = None
    """The target's log-probability of its own token, nats."""
    margin: float | None = None
    """How much the baseline preferred its token to the target's, nats; a lower bound when the
    target's token is outside the baseline's top-n."""
    margin_is_bound: bool = False
    near_tie: bool = False
    num_differing: int = 0
    """Requests that differ anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One judge's word on one case."""

    judge: str
    verdict: Verdict
    summary: str
    """One sentence that stands alone."""
    divergence: Divergence | None = None
    evidence: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The record of one case."""

    case: Case
    verdict: Verdict
    findings: tuple[Finding, ...]
    baseline_run_id: str | None
    target_run_id: str | None
    session_id: str
    started_at: str
    """ISO 8601, UTC."""
    duration_s: float
    """Seconds its two launches took, a launch shared with other cases included."""
    command: str
    """The command that runs this case again."""
    schema_version: int = SCHEMA_VERSION

    @property
    def lead(self) -> Finding | None:
        """The finding that decided the verdict (the first with it)."""
        return next((f for f in self.findings if f.verdict is self.verdict), None)

    @property
    def counts(self) -> bool:
        """False for the two controls, which are reported apart."""
        return self.case.role not in ("null", "control")

    @property
    def is_waived(self) -> bool:
        """Whether it is red as its waive says, and the waive holds."""
        waive = self.case.waive
        if waive is None or not self.counts or self.verdict.value != waive.verdict:
            return False
        objecting = {f.judge for f in self.findings if f.verdict is not Verdict.PASS}
        return "waive" not in objecting and (not waive.judges or objecting <= set(waive.judges))

    @property
    def behaved(self) -> bool:
        """A null case must PASS; a control must FAIL by each judge of `case.must_fail`.

        Every other case behaves.
        """
        wanted = {"null": Verdict.PASS, "control": Verdict.FAIL}.get(self.case.role)
        if wanted is None or self.verdict is not wanted:
            return wanted is None
        return self.case.role != "control" or not self.not_failed

    @property
    def not_failed(self) -> tuple[str, ...]:
        """Judges of `case.must_fail` that did not say FAIL."""
        failed = {f.judge for f in self.findings if f.verdict is Verdict.FAIL}
        return tuple(name for name in self.case.must_fail if name not in failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one invocation amounts to."""

    counts: Mapping[str, int]
    """Verdict name -> cases, controls left out."""
    controls: Mapping[str, str]
    """case_id of each control -> `ok` or what went wrong."""
    exit_code: int
    sentence: str
    """One sentence: what is wrong, or what was proven."""
    downgraded: bool = False
    """A null run is not exact, so no EXACT verdict beside it holds as such."""
    not_exact: tuple[str, ...] = ()
    """Engines and releases whose null run that is; empty where the session has only one."""

    @property
    def passed(self) -> bool:
        """True when the exit code is 0."""
        return self.exit_code == ExitCode.PASS

    def downgrades(self, case: Case) -> bool:
        """Whether the EXACT verdict of a case does not hold as such."""
        is_near = not self.not_exact or any(
            side.place in self.not_exact for side in (case.baseline, case.target)
        )
        return self.downgraded and case.tier is Tier.EXACT and is_near

    def incomplete(self, what: str) -> Outcome:
        """The same outcome of something that is not whole: a FAIL stays, all else is an ERROR.

        Args:
            what: one sentence: how much is there, and what is missing.
        """
        is_fail = self.exit_code == ExitCode.FAIL
        code = int(ExitCode.FAIL if is_fail else ExitCode.ERROR)
        return replace(self, exit_code=code, sentence=f"{what} So far: {self.sentence}")


def fold(findings: Iterable[Finding]) -> Verdict:
    """Fold findings into one verdict; no finding at all is VACUOUS."""
    verdicts = {f.verdict for f in findings}
    return next((v for v in FOLD_ORDER if v in verdicts), Verdict.VACUOUS)
