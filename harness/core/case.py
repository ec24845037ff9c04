"""One comparison (Case), what must be true of it (Expectation), and all that will run (Plan)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from .setting import Backend, Runner, Setting
from .workload import Workload

Role = Literal["case", "null", "control", "runner", "release"]


JUDGE_NAMES = ("effect", "placement", "memory", "ordering", "integrity", "tokens")
"""Judges in the order in which they speak."""


class Tier(Enum):
    """How equal two outputs must be."""

    EXACT = "exact"
    """Every token id equal."""
    LOGPROB = "logprob"
    """Equal up to the first near-tie; log-probabilities within tolerance before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What one side must show, computed without any engine, from shapes and arithmetic alone."""

    runner: Runner | None
    """Runner version asked for; None when the engine chooses."""
    backend: Backend
    """Backend that must be live."""
    offloaded_params: tuple[str, ...] = ()
    """Full parameter names, in the engine's order."""
    offloaded_layers: tuple[int, ...] = ()
    """Decoder layer indices that hold at least one of them."""
    offloaded_bytes: int = 0
    """Sum of their bytes."""
    pool_bytes: int = 0
    """Bytes of the static buffer pool on the device."""
    graph_bytes: int = 0
    """Device bytes that recorded graphs keep to copy weights into on forward."""
    slot_capacity: int = 0
    """Slots in the pool; 0 without prefetch."""
    slots: Mapping[int, int] = field(default_factory=dict)
    """Decoder layer index -> slot."""
    refill_after: Mapping[int, int] = field(default_factory=dict)
    """Decoder layer index -> layer whose copy starts once it has run."""
    is_pinned: bool = False
    """Host copies must be in pinned memory."""
    is_uva: bool = False
    """Parameters must be device-visible views of host memory."""
    ignored_requests: tuple[str, ...] = ()
    """Requests the engine never looks at: each makes the case VACUOUS."""
    unmatched_selectors: tuple[str, ...] = ()
    """Selectors that match no parameter: each makes the case VACUOUS."""
    all_params: tuple[str, ...] = ()
    """Every parameter name the model must have, offloaded or not; empty when not computed."""


WAIVABLE = ("FAIL", "VACUOUS", "ERROR")
"""Verdicts that a cell may be waived for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waive:
    """Why a cell may be red, until when: its one known verdict does not fail a session."""

    cell: str
    """Expression over cells, as `-k` takes it."""
    verdict: str
    """One of `WAIVABLE`; with any other verdict the cell is judged as if not waived."""
    reason: str
    judges: tuple[str, ...] = ()
    """The only ones that may object; empty: any."""
    link: str = ""
    """Where it is shown: a script, a report."""
    expires: str
    """ISO 8601 date, the last day it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison of a target with its baseline."""

    case_id: str
    """`model/workload/baseline..target`; `~HASH` follows where two would have the same."""
    baseline: Setting
    target: Setting
    workload: Workload
    tier: Tier = Tier.EXACT
    role: Role = "case"
    """`null`: baseline against itself. `control`: a planted fault that must FAIL.
    `runner`: V1 against V2. `release`: an engine against its release before."""
    judges: tuple[str, ...] = JUDGE_NAMES
    expected: Expectation
    """Of the target."""
    expected_baseline: Expectation
    expected_ranks: tuple[Expectation, ...] = ()
    """Of the target's further ranks, where it is spread over several."""
    expected_baseline_ranks: tuple[Expectation, ...] = ()
    """Of the baseline's."""
    axes: Mapping[str, str] = field(default_factory=dict)
    """Axis name -> value, for filters and JUnit properties."""
    must_fail: tuple[str, ...] = ()
    """Judges that must say FAIL of a control, since its fault is theirs to catch."""
    waive: Waive | None = None
    """Why it may be red."""

    @property
    def anchor(self) -> str:
        """Short readable id within a session: the target's setting id, prefixed where needed.

        A lifecycle's name stands before it, and the hash that tells its case id from another's
        behind it.
        """
        prefix = "" if self.role == "case" else f"{self.role}-"
        of = f"{self.workload.name}/" if self.workload.is_lifecycle else ""
        apart = "".join(self.case_id.rpartition("..")[2].partition("~")[1:])
        return f"{self.workload.model.name}/{of}{prefix}{self.target.setting_id}{apart}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """What decides a launch: a setting, a workload, and which repetition it is."""

    setting: Setting
    workload: Workload
    repeat: int = 0
    """0, or 1 for the second half of a null case."""

    @property
    def key(self) -> str:
        """File-system safe, readable and unique: `model-setting_id-hash`."""
        from hashlib import sha256

        from .codec import canonical_json

        text = canonical_json(self)
        readable = f"{self.workload.model.name}-{self.setting.setting_id}"
        safe = "".join(c if c.isalnum() or c in "-._+" else "_" for c in readable)[:120]
        return f"{safe}-{sha256(text.encode()).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """A case and the keys of its two runs."""

    case: Case
    baseline_key: RunKey
    target_key: RunKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A case that this machine or engine cannot run, and the one reason."""

    case: Case
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything one invocation will do: null cases first, each unique run once."""

    cases: tuple[PlannedCase, ...]
    unsupported: tuple[Skipped, ...] = ()

    @property
    def runs(self) -> tuple[RunKey, ...]:
        """Unique run keys in the order they are first needed."""
        seen: dict[str, RunKey] = {}
        for planned in self.cases:
            for key in (planned.baseline_key, planned.target_key):
                seen.setdefault(key.key, key)
        return tuple(seen.values())
