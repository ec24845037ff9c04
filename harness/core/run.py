"""One launch and all it showed. A crash is a value here, not an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from .probe import MemoryTrace, ProbeSnapshot
from .setting import Setting


class RunStatus(Enum):
    """How a launch ended."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    """The engine refused the setting with a clear message."""
    OOM = "oom"
    """The device's memory did not suffice."""
    ABSENT = "absent"
    """The interpreter cannot be started, or lacks the engine: so will every other launch in it."""
    CRASH = "crash"
    HANG = "hang"
    """The deadline passed; the process group was ended."""
    INTERRUPTED = "interrupted"
    """The user stopped the invocation while it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities of one answer, in nats, a row for each generated position."""

    chosen: tuple[float, ...]
    """Of the token that was generated."""
    top_token_ids: tuple[tuple[int, ...], ...]
    """Top-n candidates, best first."""
    top: tuple[tuple[float, ...], ...]
    """Their log-probabilities."""

    def __post_init__(self) -> None:
        assert len(self.chosen) == len(self.top) == len(self.top_token_ids), "rows must match"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One answer."""

    request_id: str
    step_idx: int
    """Index of the generate step in the workload."""
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    text: str | None = None
    """Decoded text, where the model has a tokenizer."""

    def __post_init__(self) -> None:
        if self.logprobs is not None:
            assert len(self.logprobs.chosen) == len(self.token_ids), "one logprob per token"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """The machine and the interpreter a run used."""

    python: str
    platform: str
    cpu_count: int
    num_threads: int
    torch: str | None = None
    device: str = "unknown"
    """Kind of device, asked of the live worker; unknown when there was none to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One launch."""

    run_id: str
    """The run key's `key`; also the name of its folder under runs/."""
    setting: Setting
    status: RunStatus
    outputs: tuple[RequestOutput, ...] = ()
    probe: ProbeSnapshot | None = None
    """Taken after the last step, in the worker of rank 0."""
    rank_probes: tuple[ProbeSnapshot, ...] = ()
    """Taken with it in the workers of the further ranks, where there are any."""
    step_probes: tuple[ProbeSnapshot, ...] = ()
    """Taken after each step of a lifecycle; recorders speak of what came since the step before."""
    step_rank_probes: tuple[ProbeSnapshot, ...] = ()
    """Taken with each of them in the further ranks; `rank` and `step_idx` say which they are."""
    leftover: MemoryTrace | None = None
    """What the engine still held once it was shut down, where its device can say."""
    host: HostInfo | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds: `spawn`, `import`, `load`, `generate`, `probe`, `total`."""
    warm: bool = False
    """Forked from a warm parent rather than started cold."""
    planted_faults: tuple[str, ...] = ()
    """Faults that really were planted; those of the setting that do not apply are not in it."""
    error: str | None = None
    """One line: why it is not ok."""
    log_tail: tuple[str, ...] = ()
    """Last lines of the log when it is not ok."""
