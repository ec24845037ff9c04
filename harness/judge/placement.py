"""Do the weights stand where arithmetic says they must, to the name, the slot and the byte?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from harness.core import (
    Case,
    Expectation,
    Finding,
    Json,
    ParamPlacement,
    ProbeSnapshot,
    Run,
    Verdict,
)

from .base import count_bytes, finding, nothing_offloaded, probe_of, run_of_rank, shortlist

_Side = tuple[str, Expectation, Run]
"""Its name, what it must show, and what it showed."""
MAX_NAMES = 20
"""Missing and extra names kept as evidence."""


def judge_placement(case: Case, baseline: Run, target: Run) -> Finding | None:
    """Compare each side's live parameters and buffer pool with its expectation.

    Both sides must have just the parameters that the model has. Of slots only who shares one is
    compared, not how they are numbered; and which copy follows which only where modules share
    slots at all: there every refill must have been seen.

    Abstains when neither side was to offload and neither did. VACUOUS when offload was expected
    and nothing is offloaded at all, the pool's slots could not be read, or no refill was seen over
    several forward passes.
    """
    main = (("target", case.expected, target), ("baseline", case.expected_baseline, baseline))
    ranks = _ranks("", case.expected_ranks, target)
    sides = (*main, *ranks)
    sides += _ranks("baseline's ", case.expected_baseline_ranks, baseline)
    involved = [s for s in sides if s[1].backend != "none" or probe_of(s[2]).offloaded_bytes]
    if not involved:
        return None
    evidence = _evidence(case.expected, probe_of(target))
    num_steps = sum(step.kind == "generate" for step in case.workload.steps)
    has_passes = num_steps * case.workload.sampling_params.max_tokens > 1
    unread: list[str] = []
    wrong = [f"{name}: {text}" for name, e, run in sides for text in _wrong_names(e, probe_of(run))]
    for name, expected, run in involved:
        probe = probe_of(run)
        is_lost = expected.offloaded_params and not any(p.is_offloaded for p in probe.params)
        if is_lost and name in ("target", "baseline"):
            cause = nothing_offloaded(run)
            summary = f"nothing is offloaded on the {name}: placement is unproven"
            return finding("placement", Verdict.VACUOUS, summary, evidence, cause=cause)
        wrong += [f"{name}: {text}" for text in _wrong_params(expected, probe)]
        wrong += [f"{name}: {text}" for text in _wrong_pool(expected, probe)]
        unread += [f"{name}: {text}" for text in _unread(expected, probe, has_passes=has_passes)]
    if wrong:
        evidence["problems"] = wrong
        return finding("placement", Verdict.FAIL, _first(wrong), evidence, cause=_cause(wrong[0]))
    if unread:
        evidence["problems"] = unread
        return finding("placement", Verdict.VACUOUS, _first(unread), evidence, cause=unread[0])
    if not any(expected.offloaded_params for _, expected, _ in involved):
        summary = "no parameter was to be offloaded: placement is unproven"
        return finding("placement", Verdict.VACUOUS, summary, evidence, cause=summary)
    evidence["ranks"] = [_numbers(expected, probe_of(run)) for _, expected, run in ranks]
    proof = [_proof(case.expected, probe_of(target))]
    proof += [f"{n.capitalize()}: {_proof(e, probe_of(run))}" for n, e, run in ranks]
    return finding("placement", Verdict.PASS, " ".join(proof), evidence)


def _ranks(side: str, expected: Sequence[Expectation], run: Run) -> tuple[_Side, ...]:
    """A side's further ranks, as sides of their own."""
    alone = (run_of_rank(run, number) for number in range(len(run.rank_probes)))
    pairs = zip(expected, alone, strict=False)
    return tuple((f"{side}rank {probe_of(one).rank}", each, one) for each, one in pairs)


def _first(problems: list[str]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return problems[0] + more


def _cause(problem: str) -> str:
    """The problem without its numbers: `target: offloaded set`."""
    return "weights stand elsewhere than computed, " + problem.split(":")[1].strip()


def _wrong_names(expected: Expectation, probe: ProbeSnapshot) -> list[str]:
    """Parameters that the model must have and the engine lacks, and the other way round."""
    if not expected.all_params:
        return []
    found = {p.name for p in probe.params}
    missing = [name for name in expected.all_params if name not in found]
    extra = sorted(found - set(expected.all_params))
    num = len(expected.all_params)
    problems = []
    if missing:
        text = f"parameters missing from the engine: {len(missing)} of {num}, {shortlist(missing)}"
        problems.append(text)
    if extra:
        text = f"parameters the model does not have: {len(extra)}, {shortlist(extra)}"
        problems.append(text)
    return problems


def _wrong_params(expected: Expectation, probe: ProbeSnapshot) -> list[str]:
    found = [p for p in probe.params if p.is_offloaded]
    missing, extra = _difference(expected, found)
    problems = []
    if other := _other_layers(expected, probe, found):
        problems.append(other)
    elif missing:
        problems.append(
            f"parameters that had to be offloaded and are not: {len(missing)} of "
            f"{len(expected.offloaded_params)}, {shortlist(missing)}"
        )
    if extra and not other:
        problems.append(f"parameters offloaded unexpectedly: {len(extra)}, {shortlist(extra)}")
    if probe.offloaded_bytes != expected.offloaded_bytes and not missing and not extra:
        problems.append(
            f"offloaded bytes differ: expected {expected.offloaded_bytes:,}, "
            f"found {probe.offloaded_bytes:,}"
        )
    if stuck := [p.name for p in found if p.space == "device"]:
        problems.append(
            f"parameters called offloaded with their bytes on the device: {shortlist(stuck)}"
        )
    return problems


def _other_layers(expected: Expectation, probe: ProbeSnapshot, found: list[ParamPlacement]) -> str:
    """That other layers are offloaded than computed, with as many bytes; empty if not."""
    layers = sorted({p.layer_idx for p in found if p.layer_idx is not None})
    is_other = layers != sorted(expected.offloaded_layers)
    if not is_other or probe.offloaded_bytes != expected.offloaded_bytes:
        return ""
    wanted = ", ".join(map(str, expected.offloaded_layers))
    return (
        f"other layers are offloaded than computed, with the same bytes: expected {wanted}, "
        f"found {', '.join(map(str, layers))}"
    )


def _difference(expected: Expectation, found: list[ParamPlacement]) -> tuple[list[str], list[str]]:
    """Names (missing, extra)."""
    names = {p.name for p in found}
    missing = [name for name in expected.offloaded_params if name not in names]
    return missing, sorted(names - set(expected.offloaded_params))


def _wrong_pool(expected: Expectation, probe: ProbeSnapshot) -> list[str]:
    pool = probe.buffer_pool
    if pool is None:
        return []
    problems = []
    is_used = bool(expected.offloaded_params or pool.num_bytes)  # else its slots hold nothing
    if is_used and pool.slot_capacity != expected.slot_capacity:
        problems.append(
            f"slot capacity differs: expected {expected.slot_capacity}, found {pool.slot_capacity}"
        )
    if pool.num_bytes != expected.pool_bytes:
        problems.append(
            f"pool bytes differ: expected {expected.pool_bytes:,}, found {pool.num_bytes:,}"
        )
    if pool.slots:
        problems += _wrong_slots("slot of layer", expected.slots, pool.slots, every=True)
    by_address = {
        p.layer_idx: p.slot_idx
        for p in probe.params
        if p.is_offloaded and p.slot_idx is not None and p.layer_idx is not None
    }
    problems += _wrong_slots("slot by address of layer", expected.slots, by_address)
    if pool.slots and (told := _wrong_map("slot by address of layer", pool.slots, by_address)):
        problems += told
    if _shares_slots(expected) and pool.refill_after:
        refills = (expected.refill_after, pool.refill_after)
        problems += _wrong_map("refill after layer", *refills, every=True)
    return problems


def _shares_slots(expected: Expectation) -> bool:
    """Whether any module ever loses its slot to another."""
    return len(expected.slots) > expected.slot_capacity


def _wrong_map(
    what: str, expected: Mapping[int, int], found: Mapping[int, int], *, every: bool = False
) -> list[str]:
    """One problem naming the first wrong entry; `every` also wants no expected entry missing."""
    keys = sorted(set(found) | set(expected) if every else found)
    wrong = [key for key in keys if found.get(key) != expected.get(key)]
    if not wrong:
        return []
    key = wrong[0]
    return [
        f"{what} differs: layer {key} expected {expected.get(key)}, found {found.get(key)}"
        f"; {len(wrong)} of {len(keys)} wrong"
    ]


def _wrong_slots(
    what: str, expected: Mapping[int, int], found: Mapping[int, int], *, every: bool = False
) -> list[str]:
    """As `_wrong_map`, but for how slots are numbered: who shares one with whom must be right."""
    number: dict[int, int] = {}
    for layer in sorted(set(found) & set(expected)):
        if expected[layer] not in number and found[layer] not in number.values():
            number[expected[layer]] = found[layer]
    for slot in sorted(set(expected.values()) - set(number)):
        taken = {*found.values(), *number.values()}
        number[slot] = next(n for n in count() if n not in taken)
    renumbered = {layer: number[slot] for layer, slot in expected.items()}
    return _wrong_map(what, renumbered, found, every=every)


def _unread(expected: Expectation, probe: ProbeSnapshot, *, has_passes: bool) -> list[str]:
    if not expected.slot_capacity:
        return []
    if probe.buffer_pool is None:
        return ["the buffer pool could not be read"]
    has_addresses = any(p.slot_idx is not None for p in probe.params)
    if expected.slots and not probe.buffer_pool.slots and not has_addresses:
        return ["no slot of the buffer pool could be read"]
    if has_passes and _shares_slots(expected) and not probe.buffer_pool.refill_after:
        return ["no refill of the buffer pool was seen over several forward passes"]
    return []


def _proof(expected: Expectation, probe: ProbeSnapshot) -> str:
    text = (
        f"Weights stand where they should: {len(expected.offloaded_params)} parameters of "
        f"{len(expected.offloaded_layers)} layers, {count_bytes(probe.offloaded_bytes)}, "
        "as computed"
    )
    if not expected.slot_capacity:
        return f"{text}."
    pool = f"{expected.slot_capacity} slots of a pool of {count_bytes(expected.pool_bytes)}"
    return f"{text}; they compute from the {pool}."


def _evidence(expected: Expectation, probe: ProbeSnapshot) -> dict[str, Json]:
    found = [p for p in probe.params if p.is_offloaded]
    missing, extra = _difference(expected, found)
    pool = probe.buffer_pool
    return {
        "layers": _layers(expected, probe.params),
        **_numbers(expected, probe),
        "missing": missing[:MAX_NAMES],
        "extra": extra[:MAX_NAMES],
        "num_missing": len(missing),
        "num_extra": len(extra),
        "num_refills_observed": len(pool.refill_after) if pool else 0,
    }


def _numbers(expected: Expectation, probe: ProbeSnapshot) -> dict[str, Json]:
    """What must be offloaded and what is, in numbers."""
    found, pool = [p for p in probe.params if p.is_offloaded], probe.buffer_pool
    return {
        "expected": {
            "num_params": len(expected.offloaded_params),
            "bytes": expected.offloaded_bytes,
            "layers": list(expected.offloaded_layers),
            "slot_capacity": expected.slot_capacity,
            "pool_bytes": expected.pool_bytes,
        },
        "actual": {
            "num_params": len(found),
            "bytes": probe.offloaded_bytes,
            "layers": sorted({p.layer_idx for p in found if p.layer_idx is not None}),
            "slot_capacity": pool.slot_capacity if pool else 0,
            "pool_bytes": pool.num_bytes if pool else 0,
        },
    }


def _layers(expected: Expectation, params: tuple[ParamPlacement, ...]) -> list[Json]:
    """Bytes of each layer by space; layer None is everything outside the decoder stack."""
    layers: dict[int | None, dict[str, Json]] = {}
    for param in params:
        row = layers.setdefault(
            param.layer_idx,
            {"layer": param.layer_idx, "device": 0, "host": 0, "pinned": 0, "slot": None},
        )
        row[param.space] = row.get(param.space, 0) + param.num_bytes
        if param.slot_idx is not None:
            row["slot"] = param.slot_idx
        row["expected_offloaded"] = param.layer_idx in expected.offloaded_layers
    return sorted(layers.values(), key=lambda row: (row["layer"] is None, row["layer"] or 0))
