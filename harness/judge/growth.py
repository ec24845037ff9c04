"""Does memory stay what it was from one generate of a lifecycle to the next?"""

from __future__ import annotations

from harness.core import Case, MemoryTrace, Run

from .base import count_bytes

GREW = "memory grew from one generate to a later one"


def who_grew(case: Case, baseline: Run, target: Run) -> str:
    """Which side holds more after a later generate than after the first; empty if neither does.

    Says nothing of allocators that round, whose figures also move by what they keep in reserve.
    """
    for name, run in (("target", target), ("baseline", baseline)):
        if words := _growth(case, run):
            return f"the {name} holds {words}"
    return ""


def _growth(case: Case, run: Run) -> str:
    traces = _after_generates(case, run)
    if not traces:
        return ""
    first_idx, first = traces[0]
    for step_idx, memory in traces[1:]:
        for kind in ("device", "pinned", "host"):
            more = getattr(memory, f"{kind}_bytes") - getattr(first, f"{kind}_bytes")
            if more > 0:
                steps = f"after step {step_idx} than after step {first_idx}"
                return f"{count_bytes(more)} more of {kind} memory {steps}"
    return ""


def _after_generates(case: Case, run: Run) -> list[tuple[int, MemoryTrace]]:
    return [
        (probe.step_idx, probe.memory)
        for probe in run.step_probes
        if probe.memory is not None
        and probe.memory.granularity_bytes == 1
        and case.workload.steps[probe.step_idx].kind == "generate"
    ]
