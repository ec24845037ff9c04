"""Did every layer compute with its own weights? Bytes hashed as compute read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.core import (
    Case,
    Finding,
    IntegrityTrace,
    Json,
    ProbeSnapshot,
    Run,
    Verdict,
    WeightReads,
)

from .base import (
    Recorded,
    finding,
    first_unproven,
    probe_of,
    proof_of_ranks,
    recorded_sides,
    shortlist,
)

INSTRUMENTS = ("integrity", "integrity-full")
MAX_WRONG = 50
"""Wrong contents kept as evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrong:
    """One wrong content of one parameter."""

    side: Recorded
    reads: WeightReads
    digest: str
    holder: str
    """Whose bytes they are: `layers.0`, or empty when nobody's."""

    @property
    def text(self) -> str:
        reads, slot = self.reads, self.reads.slots.get(self.digest)
        place = "" if slot is None else f" in slot {slot}"
        whose = f"holds {self.holder}" if self.holder else "holds bytes that are no parameter's"
        total = sum(reads.digests.values())
        seen = f"{reads.digests[self.digest]} of {total} hashed reads"
        return f"{_short(reads.name)}{place} {whose}{self.side.place}, at {seen}"


def judge_integrity(case: Case, baseline: Run, target: Run) -> Finding | None:
    """Hold every hashed read against the checkpoint's bytes, and both sides against each other.

    Abstains when neither side was asked to hash. VACUOUS when hashes that were asked for are
    missing, any parameter was never hashed, or none of them is in a checkpoint: then each was only
    held against its own first read. A parameter that is in no checkpoint (loading gave it another
    form) and is offloaded, or hashed at rest, must have been hashed on both sides, with the same
    bytes, and be resident on one of them.
    """
    sides = recorded_sides(case, baseline, target, INSTRUMENTS)
    if not sides:
        return None
    evidence: dict[str, Json] = {side.name: _evidence(side.probe.integrity) for side in sides}
    wrong = [each for side in sides for each in _wrong(side, side.probe.integrity)]
    if wrong:
        evidence["wrong"] = [_row(each) for each in wrong[:MAX_WRONG]]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        cause = "a layer computed with " + (
            "another layer's weights" if wrong[0].holder else "bytes that are no weights"
        )
        return finding("integrity", Verdict.FAIL, wrong[0].text + more, evidence, cause=cause)
    pairs: list[tuple[ProbeSnapshot, ProbeSnapshot]] = []
    if len(baseline.rank_probes) == len(target.rank_probes):  # else each holds other parts
        pairs.append((probe_of(baseline), probe_of(target)))
        pairs += zip(baseline.rank_probes, target.rank_probes, strict=True)
    if moved := next(filter(None, (_differing(b.integrity, t.integrity) for b, t in pairs)), ""):
        summary = f"{_short(moved)} is held against other bytes on each side: one is wrong"
        cause = "the sides hold different derived tensors"
        return finding("integrity", Verdict.FAIL, summary, evidence, cause=cause)
    shared = {left.rank: _hashed_resident(left, right) for left, right in pairs}

    def reason_of(side: Recorded) -> str:
        return _unproven(side, shared.get(side.probe.rank, frozenset()))

    if unproven := first_unproven("integrity", sides, reason_of, evidence, "weight"):
        return unproven
    return finding("integrity", Verdict.PASS, proof_of_ranks(sides, _proof), evidence)


def _hashed_resident(left: ProbeSnapshot, right: ProbeSnapshot) -> frozenset[str]:
    """Parameters hashed in a worker of both sides, and on the device in one of them at least.

    `_differing` has told if they were not the same bytes.
    """
    names: list[set[str]] = []
    for probe in (left, right):
        reads = () if probe.integrity is None else probe.integrity.reads
        names.append({each.name for each in reads if each.digests})
    resident = {p.name for probe in (left, right) for p in probe.params if not p.is_offloaded}
    return frozenset(names[0] & names[1] & resident)


def _wrong(side: Recorded, trace: IntegrityTrace | None) -> Iterator[_Wrong]:
    if trace is None:
        return
    owners = {(_relative(r), r.expected): _place(r) for r in reversed(trace.reads)}
    for reads in trace.reads:
        for digest in reads.digests:
            if digest != reads.expected:
                holder = owners.get((_relative(reads), digest), "")
                yield _Wrong(side=side, reads=reads, digest=digest, holder=holder)


def _differing(left: IntegrityTrace | None, right: IntegrityTrace | None) -> str:
    """First tensor that both sides read and expect different bytes of; empty if none."""
    if left is None or right is None:
        return ""
    expected = {reads.name: reads.expected for reads in left.reads}
    return next((r.name for r in right.reads if expected.get(r.name, r.expected) != r.expected), "")


def _unproven(side: Recorded, shared: frozenset[str]) -> str:
    """Why a side's hashes prove nothing; `shared` is what `_hashed_resident` found."""
    trace = side.probe.integrity
    if trace is None:
        return "the hashes that were asked for are missing"
    if not trace.num_hashed:
        return "nothing was hashed"
    step_idx = side.probe.step_idx
    has_computed = side.steps[step_idx].kind == "generate"
    if trace.mode == "rest" and has_computed and side.probe.sees_compute:
        return "weights were hashed at rest only, though compute can be watched"
    hashed = {reads.name: reads for reads in trace.reads if reads.digests}
    lost = [p for p in side.probe.params if p.name not in hashed]
    for param in sorted(lost, key=lambda p: not p.is_offloaded):
        where = "offloaded" if param.is_offloaded else "resident"
        return f"{_short(param.name)} is {where} and was never hashed"
    return _held_against_itself(side, trace, hashed, shared)


def _held_against_itself(
    side: Recorded,
    trace: IntegrityTrace,
    hashed: Mapping[str, WeightReads],
    shared: frozenset[str],
) -> str:
    """The first parameter that has nothing outside itself to be held against; empty if none.

    One on the device may be derived, as long as compute was seen to read it unchanged.
    """
    for param in side.probe.params:
        is_open = (trace.mode == "rest" or param.is_offloaded) and param.name not in shared
        if hashed[param.name].is_first_read and is_open:
            unknown = f"{_short(param.name)} is in no checkpoint"
            return f"{unknown}, it was only held against its own first read"
    if all(reads.is_first_read for reads in hashed.values()):
        return "no parameter is in a checkpoint, each was held against its first read"
    return ""


def _proof(side: Recorded) -> str:
    trace = side.probe.integrity
    assert trace is not None, "a missing trace was told before"
    when = f"taken at {trace.num_reads:,} reads by compute"
    if trace.mode == "rest":
        when = "taken at rest after the last step (not at the moment of compute)"
    text = f"All {trace.num_hashed:,} hashes of {len(trace.reads)} tensors, {when}, are"
    own = [_short(reads.name) for reads in trace.reads if reads.is_first_read]
    if not own:
        return f"{text} the checkpoint's."
    rest = f"the {len(own)} that no checkpoint has ({shortlist(own)})"
    offloaded = {_short(p.name) for p in side.probe.params if p.is_offloaded} & set(own)
    also = f", {len(offloaded)} of them the other side's resident ones" if offloaded else ""
    return f"{text} the checkpoint's, and for {rest} those of its first read{also}."


def _short(name: str) -> str:
    return name.removeprefix("model.")


def _place(reads: WeightReads) -> str:
    """The layer, or the whole name outside the stack."""
    return _short(reads.name) if reads.layer_idx is None else f"layers.{reads.layer_idx}"


def _relative(reads: WeightReads) -> str:
    """The name within its layer, so that the same parameter of all layers is one."""
    return reads.name.partition(f".{reads.layer_idx}.")[2] or reads.name


def _row(wrong: _Wrong) -> Json:
    reads = wrong.reads
    return {
        "side": wrong.side.name,
        "param": reads.name,
        "layer": reads.layer_idx,
        "slot": reads.slots.get(wrong.digest),
        "holds": wrong.holder or None,
        "digest": wrong.digest,
        "expected": reads.expected,
        "count": reads.digests[wrong.digest],
        "text": wrong.text,
    }


def _evidence(trace: IntegrityTrace | None) -> Json:
    if trace is None:
        return None
    return {
        "mode": trace.mode,
        "num_reads": trace.num_reads,
        "num_hashed": trace.num_hashed,
        "num_tensors": len(trace.reads),
        "num_held_against_first_read": sum(reads.is_first_read for reads in trace.reads),
        "not_observed": list(trace.not_observed),
    }
