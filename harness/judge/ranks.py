"""Where a model is spread over several workers, each of them must run what rank 0 runs."""

from __future__ import annotations

from harness.core import ProbeSnapshot, Run, Setting

from .base import probe_of

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")


def count_ranks(setting: Setting, run: Run) -> int:
    """Workers that were asked for, or that answered where that is more."""
    asked = 1
    for name in _SIZES:
        size = setting.engine_args.get(name)
        asked *= size if isinstance(size, int) and size > 0 else 1
    return max(asked, 1 + len(run.rank_probes))


def count_alike(run: Run) -> int:
    """Workers that run what rank 0 runs, itself included."""
    return 1 + sum(not _differences(probe_of(run), probe) for probe in run.rank_probes)


def check_ranks(setting: Setting, run: Run) -> list[str]:
    """Say of each further rank what it does not share with rank 0.

    Returns:
        One cause for each: another runner class, another offloader class, no offloaded parameter
        although rank 0 has some, internals not found; and one for ranks that were never read.
    """
    first, rest = probe_of(run), run.rank_probes
    num_ranks = count_ranks(setting, run)
    causes = (
        [] if num_ranks == 1 + len(rest) else [f"only {1 + len(rest)} of {num_ranks} ranks read"]
    )
    for number, probe in enumerate(rest, 1):
        rank = probe.rank or number
        causes += [f"rank {rank} {text}" for text in _differences(first, probe)]
    return causes


def _differences(first: ProbeSnapshot, probe: ProbeSnapshot) -> list[str]:
    found = []
    if probe.drift:
        found.append(f"could not be read: {', '.join(probe.drift)} not found")
    for what, mine, other in (
        ("runs", probe.runner_class, first.runner_class),
        ("has", probe.offloader_class, first.offloader_class),
    ):
        if mine != other:
            found.append(f"{what} {mine or 'nothing'}, rank 0 {what} {other or 'nothing'}")
    if first.offloaded_bytes and not probe.offloaded_bytes:
        found.append("holds no offloaded parameter, rank 0 does")
    return found
