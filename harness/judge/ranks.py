"""Where a model is spread over several workers, each of them must run what rank 0 runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from harness.core import Expectation, ProbeSnapshot, Run, Setting

from .base import probe_of

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")


def count_ranks(setting: Setting, run: Run) -> int:
    """Workers that were asked for, or that answered where that is more."""
    asked = 1
    for name in _SIZES:
        size = setting.engine_args.get(name)
        asked *= size if isinstance(size, int) and size > 0 else 1
    return max(asked, 1 + len(run.rank_probes))


def unmatched_selectors(expected: Sequence[Expectation]) -> list[str]:
    """Selectors that match no parameter of any rank, the first one's order kept."""
    first, *others = (each.unmatched_selectors for each in expected)
    return [selector for selector in first if all(selector in other for other in others)]


def count_alike(run: Run, expected: Sequence[Expectation] = ()) -> int:
    """Workers that run what rank 0 runs, itself included; `expected` as for `check_ranks`."""
    return 1 + sum(not found for _, found in _compare(run, expected))


def check_ranks(setting: Setting, run: Run, expected: Sequence[Expectation] = ()) -> list[str]:
    """Say of each further rank what it does not share with rank 0.

    Args:
        setting: the run's.
        run: with the probes of its ranks.
        expected: of the further ranks, where they were computed: not each need offload something.

    Returns:
        One cause for each: another runner class, another offloader class, no offloaded parameter
        although rank 0 has some, internals not found; and one for ranks that were never read.
    """
    rest = run.rank_probes
    num_ranks = count_ranks(setting, run)
    causes = (
        [] if num_ranks == 1 + len(rest) else [f"only {1 + len(rest)} of {num_ranks} ranks read"]
    )
    for rank, found in _compare(run, expected):
        causes += [f"rank {rank} {text}" for text in found]
    return causes


def _compare(run: Run, expected: Sequence[Expectation]) -> list[tuple[int, list[str]]]:
    """Each further rank, and what it does not share with rank 0."""
    first, rest = probe_of(run), run.rank_probes
    pairs = enumerate(zip_longest(rest, expected[: len(rest)]), 1)
    return [(p.rank or number, _differences(first, p, wanted)) for number, (p, wanted) in pairs]


def _differences(
    first: ProbeSnapshot, probe: ProbeSnapshot, expected: Expectation | None
) -> list[str]:
    found = []
    if probe.drift:
        found.append(f"could not be read: {', '.join(probe.drift)} not found")
    for what, mine, other in (
        ("runs", probe.runner_class, first.runner_class),
        ("has", probe.offloader_class, first.offloader_class),
    ):
        if mine != other:
            found.append(f"{what} {mine or 'nothing'}, rank 0 {what} {other or 'nothing'}")
    for name in ("model", "enforce_eager", "dtype"):
        value, wanted = probe.effective_config.get(name), first.effective_config.get(name)
        if value != wanted:
            found.append(f"has {name}={value}, rank 0 has {wanted}")
    wanted = bool(first.offloaded_bytes if expected is None else expected.offloaded_params)
    if wanted != bool(probe.offloaded_bytes):
        which = ("holds an", "must not") if probe.offloaded_bytes else ("holds no", "must")
        other = "does" if first.offloaded_bytes else "does not"
        told = f"rank 0 {other}" if wanted == bool(first.offloaded_bytes) else f"it {which[1]}"
        found.append(f"{which[0]} offloaded parameter, {told}")
    if probe.reported_offloaded_bytes != probe.offloaded_bytes:
        counts = f"{probe.reported_offloaded_bytes:,} against {probe.offloaded_bytes:,} bytes"
        found.append(f"has an offloader that miscounts: {counts}")
    return found + (_other_manner(first, probe) if expected is None else _manner(probe, expected))


def _manner(probe: ProbeSnapshot, expected: Expectation) -> list[str]:
    """How a rank holds its offloaded parameters, where that is not as computed for it."""
    held = [param for param in probe.params if param.is_offloaded]
    found = []
    for what, num, is_wanted in (
        ("pinned", sum(param.is_pinned for param in held), expected.is_pinned),
        ("views of host memory", sum(param.is_uva for param in held), expected.is_uva),
    ):
        if num != (len(held) if is_wanted else 0):
            wanted = "all" if is_wanted else "none"
            found.append(f"has {num} of {len(held)} offloaded parameters {what}, {wanted} wanted")
    return found


def _other_manner(first: ProbeSnapshot, probe: ProbeSnapshot) -> list[str]:
    """How a rank holds its offloaded parameters, where rank 0 holds its own otherwise."""
    held = [[param for param in each.params if param.is_offloaded] for each in (probe, first)]
    if not all(held):
        return []
    found = []
    for what, name in (("pinned", "is_pinned"), ("views", "is_uva")):
        mine, other = ({getattr(param, name) for param in each} for each in held)
        if mine != other:
            found.append(f"holds its offloaded parameters otherwise than rank 0 ({what})")
    return found
