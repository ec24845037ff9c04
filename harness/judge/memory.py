"""Did offload free the device bytes it must, by the allocators' account and not the offloader's?"""

from __future__ import annotations

from dataclasses import asdict, replace

from harness.core import Case, Expectation, Finding, Json, MemoryTrace, Run, Verdict
from harness.core.workload import OTHER_ENGINE

from .base import WORST_FIRST, count_bytes, finding, nothing_offloaded, probe_of, run_of_rank
from .growth import GREW, who_grew

WEIGHT_KINDS = ("weights", "buffer_pool", "graph_weights")
"""Device bytes compared when the sides differ in more than offload, so that state may differ."""
TAX_SHARE = 0.25
"""Of the offloaded bytes: host memory that grows by more beyond them is named."""


def judge_memory(case: Case, baseline: Run, target: Run) -> Finding | None:
    """The worst that is said of any rank, each of which has a device of its own; see `_judge_rank`.

    VACUOUS where the sides are spread over unequal numbers of ranks: no device has a counterpart.
    """
    if len(baseline.rank_probes) != len(target.rank_probes) and _offloads(case):
        cause = "the sides are spread over unequal numbers of devices"
        sizes = f"{1 + len(baseline.rank_probes)} and {1 + len(target.rank_probes)}"
        summary = f"{cause} ({sizes}): no saving to measure; give both the same"
        return finding("memory", Verdict.VACUOUS, summary, {}, cause=cause)
    words = [_judge_rank(case, baseline, target)]
    pairs = zip(case.expected_ranks, case.expected_baseline_ranks, strict=False)
    for number, (expected, other) in enumerate(pairs):
        if number >= min(len(run.rank_probes) for run in (baseline, target)):
            break  # the effect judge tells of ranks that were not read
        alone = replace(case, expected=expected, expected_baseline=other)
        word = _judge_rank(alone, *(run_of_rank(run, number) for run in (baseline, target)))
        words.append(word and replace(word, summary=f"Rank {number + 1}: {word.summary}"))
    said = [word for word in words if word is not None]
    first = min(said, key=lambda word: WORST_FIRST.index(word.verdict), default=None)
    if first is None or first.verdict is not Verdict.PASS or len(said) == 1:
        return first
    evidence = {**first.evidence, "ranks": [dict(word.evidence) for word in said[1:]]}
    return replace(first, summary=" ".join(word.summary for word in said), evidence=evidence)


def _offloads(case: Case) -> bool:
    sides = (case.expected, case.expected_baseline)
    ranks = (*case.expected_ranks, *case.expected_baseline_ranks)
    return any(each.offloaded_bytes for each in (*sides, *ranks))


def _judge_rank(case: Case, baseline: Run, target: Run) -> Finding | None:
    """Compare the device bytes saved with offloaded bytes minus the pool, and find the copies.

    Equal within the allocator's rounding of each tensor involved: to the byte where it does not
    round. Abstains when neither side was to offload. VACUOUS when memory was not measured,
    was measured in one process, or nothing is offloaded at all.
    """
    if not (case.expected.offloaded_bytes or case.expected_baseline.offloaded_bytes):
        return None
    left, right = probe_of(baseline).memory, probe_of(target).memory
    if left is None or right is None:
        side = "baseline" if left is None else "target"
        summary = f"memory of the {side} was not measured: nothing is known of the saving"
        return finding("memory", Verdict.VACUOUS, summary, {}, cause="memory was not measured")
    account, saved = _saved(case, left, right)
    expected = _net(case.expected) - _net(case.expected_baseline)
    tolerance = _tolerance(case, left, right)
    evidence: dict[str, Json] = {
        "baseline": _reproducible(left),
        "target": _reproducible(right),
        "account": account,
        "saved_bytes": saved,
        "expected_saved_bytes": expected,
        "tolerance_bytes": tolerance,
        "host_growth_bytes": _taken(right) - _taken(left),
        "expected_host_growth_bytes": _host_growth(case),
    }
    if unproven := _unproven(case, baseline, target, saved):
        summary, cause = unproven
        return finding("memory", Verdict.VACUOUS, summary, evidence, cause=cause)
    if abs(saved - expected) > tolerance:
        summary = (
            f"the device had to hold {count_bytes(expected)} less than the baseline's, "
            f"and holds {count_bytes(saved)} less ({saved - expected:+,})"
        )
        cause = "the device does not hold fewer bytes by the offloaded ones"
        return finding("memory", Verdict.FAIL, summary, evidence, cause=cause)
    cause = "host memory does not hold the offloaded copies"
    wrong = _lost_copies(baseline, target, left, right, tolerance)
    if not wrong and (wrong := who_grew(case, baseline, target)):
        cause = GREW
    if not wrong and (wrong := _kept(baseline, target)):
        cause = "a shut-down engine still holds memory"
    if wrong:
        return finding("memory", Verdict.FAIL, wrong, evidence, cause=cause)
    proof = _proof(case, saved) + _tax(case, left, right)
    return finding("memory", Verdict.PASS, proof, evidence)


def _kept(baseline: Run, target: Run) -> str:
    """Which side did not give everything back, and what; empty if both did."""
    for name, run in (("target", target), ("baseline", baseline)):
        if held := _left_over(run):
            return f"the {name} still holds {held} after its shutdown"
    return ""


def _left_over(run: Run) -> str:
    """What an engine did not give back, by kind of memory; empty if nothing, or not known."""
    if run.leftover is None:
        return ""
    held = {
        "device": run.leftover.device_bytes,
        "pinned": run.leftover.pinned_bytes,
        "host": run.leftover.host_bytes,
    }
    return ", ".join(f"{count_bytes(num)} of {kind} memory" for kind, num in held.items() if num)


def _unproven(case: Case, baseline: Run, target: Run, saved: int) -> tuple[str, str] | None:
    """Summary and cause where the figures, whatever they are, say nothing of offload."""
    one, other = probe_of(baseline).process_id, probe_of(target).process_id
    if one and one == other:
        cause = "both sides were measured in one process"
        return f"{cause} ({one}): what the first left there counts for the second", cause
    for run, wanted in ((target, case.expected), (baseline, case.expected_baseline)):
        if wanted.offloaded_bytes and not probe_of(run).offloaded_bytes:
            summary = f"nothing is offloaded: no saving to measure ({count_bytes(saved)} less)"
            return summary, nothing_offloaded(run)
    return None


def _net(expected: Expectation) -> int:
    """Device bytes an expectation frees."""
    return expected.offloaded_bytes - expected.pool_bytes - expected.graph_bytes


def _saved(case: Case, left: MemoryTrace, right: MemoryTrace) -> tuple[str, int]:
    """The account compared, and by how many bytes the target holds less on it."""
    differing = set(case.baseline.differing_axes(case.target)) - {"offload", "faults"}
    measured = all(kind in t.by_kind for t in (left, right) for kind in WEIGHT_KINDS[:1])
    # An allocator that rounds is the process's own: other engines in it left what they left.
    shared = any(step.kind in OTHER_ENGINE for step in case.workload.steps)
    shared = shared and max(left.granularity_bytes, right.granularity_bytes) > 1
    if measured and (differing or shared):
        sums = [sum(t.by_kind.get(kind, 0) for kind in WEIGHT_KINDS) for t in (left, right)]
        return "weights and buffer pool", sums[0] - sums[1]
    caches = [t.by_kind.get("kv_cache", 0) for t in (left, right)]
    if left.device_capacity_bytes and right.device_capacity_bytes and caches[0] != caches[1]:
        freed = left.device_bytes - caches[0] - right.device_bytes + caches[1]
        return "device without the KV cache, which took what offload freed", freed
    return "device", left.device_bytes - right.device_bytes


def _tolerance(case: Case, left: MemoryTrace, right: MemoryTrace) -> int:
    rounding = max(left.granularity_bytes, right.granularity_bytes) - 1
    num = sum(
        len(e.offloaded_params) * (2 if e.pool_bytes else 1)
        for e in (case.expected, case.expected_baseline)
    )
    return rounding * num


def _lost_copies(
    baseline: Run, target: Run, left: MemoryTrace, right: MemoryTrace, tolerance: int
) -> str:
    """What host memory lacks of the copies the target's parameters claim to have; empty if none.

    Judged by the live parameters' own spaces, so that a pin that was not honoured is the effect
    judge's word alone.
    """
    for space, grown in (
        ("pinned", right.pinned_bytes - left.pinned_bytes),
        ("host", right.host_bytes - left.host_bytes),
    ):
        sums = [
            sum(p.num_bytes for p in probe_of(run).params if p.is_offloaded and p.space == space)
            for run in (baseline, target)
        ]
        wanted = sums[1] - sums[0]
        if wanted > 0 and grown < wanted - tolerance:
            return (
                f"the {space} memory of the target had to grow by {count_bytes(wanted)} of "
                f"offloaded copies, and grew by {count_bytes(grown)}"
            )
    return ""


def _reproducible(trace: MemoryTrace) -> dict[str, Json]:
    """The allocators' account, without the kernel's, which no second run repeats to the byte."""
    return asdict(replace(trace, process=None))


def _taken(trace: MemoryTrace) -> int:
    """Host bytes taken for weights, rounding of pinned allocations included where it is known."""
    pinned = trace.pinned_allocated_bytes
    return trace.host_bytes + (trace.pinned_bytes if pinned is None else pinned)


def _host_growth(case: Case) -> int:
    return case.expected.offloaded_bytes - case.expected_baseline.offloaded_bytes


def _tax(case: Case, left: MemoryTrace, right: MemoryTrace) -> str:
    """A sentence where host memory grew by much more than what is offloaded; else nothing."""
    grown, wanted = _taken(right) - _taken(left), _host_growth(case)
    if wanted <= 0 or grown <= wanted * (1 + TAX_SHARE):
        return ""
    asked = right.pinned_bytes + right.host_bytes - left.pinned_bytes - left.host_bytes
    by_rounding = f", {grown - asked:,} of it by rounding pinned allocations up"
    return (
        f" Pinned tax: host memory grew by {count_bytes(grown)}, "
        f"{grown / wanted - 1:.0%} more than is offloaded"
        f"{by_rounding if grown > asked else ''}."
    )


def _proof(case: Case, saved: int) -> str:
    text = f"The device holds {count_bytes(saved)} less"
    if saved <= 0:
        text = f"The device holds {count_bytes(-saved)} more, as it must"
    if case.expected_baseline.offloaded_bytes:
        return f"{text}, as computed from what each side offloads."
    pool = case.expected.pool_bytes
    graph = case.expected.graph_bytes
    parts = f"{case.expected.offloaded_bytes:,} offloaded"
    parts += f" minus a pool of {pool:,}" if pool else ""
    return f"{text}: {parts}{f' minus temporaries of graphs of {graph:,}' if graph else ''}."
