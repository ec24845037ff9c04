"""Did a sleep put weights away? By the device's bytes after it, not because it was asked to."""

from __future__ import annotations

from harness.core import Case, Finding, MemoryTrace, ProbeSnapshot, Run, Verdict

from .base import count_bytes, finding, run_of_rank

KINDS = ("weights", "buffer_pool")
MIN_SHARE = 0.9
"""Of the weights' bytes that a sleep must free: allocators keep small rests."""


def judge_sleep(case: Case, baseline: Run, target: Run) -> Finding | None:
    """Say which sleep of either side freed too little; None when each freed the weights' bytes.

    Abstains without a sleep, and of a null case, which is asked for equal answers only. VACUOUS
    when a sleep freed less than the weights had on the device: what comes after it proves nothing
    of waking up.
    """
    if case.role == "null":
        return None
    sides = [("target", target), ("baseline", baseline)]
    sides += [
        (f"{name}'s rank {probe.rank}", run_of_rank(run, number))
        for name, run in sides
        for number, probe in enumerate(run.rank_probes)
    ]
    for name, run in sides:
        for step_idx, step in enumerate(case.workload.steps):
            if step.kind == "sleep" and (reason := _unproven(run, step_idx)):
                text = f"sleep level {step.args.get('level', 1)} freed {reason}"
                summary = f"after step {step_idx} ({step.name}): {text} on the {name}"
                cause = text.partition(" of ")[0]
                return finding("memory", Verdict.VACUOUS, summary, {}, cause=cause)
    return None


def _unproven(run: Run, step_idx: int) -> str:
    """What a sleep freed in place of the weights; empty where it freed them, or none were there."""
    before = max(
        (p for p in run.step_probes if p.step_idx < step_idx and not p.is_asleep),
        key=lambda probe: probe.step_idx,
        default=None,
    )
    after = next((p for p in run.step_probes if p.step_idx == step_idx), None)
    if before is None or before.memory is None or after is None or after.memory is None:
        return "an unknown amount: memory was not measured before and after"
    wanted = _on_device(before, before.memory)
    freed = before.memory.device_bytes - after.memory.device_bytes
    if freed >= wanted * MIN_SHARE:
        return ""
    if freed <= 0:
        return "nothing"
    return f"too little: {count_bytes(freed)} of {wanted:,} that weights had on the device"


def _on_device(probe: ProbeSnapshot, memory: MemoryTrace) -> int:
    """Bytes that weights and their buffer pool had on the device."""
    if KINDS[0] in memory.by_kind:
        return sum(memory.by_kind.get(kind, 0) for kind in KINDS)
    return sum(p.num_bytes for p in probe.params if p.space == "device")
