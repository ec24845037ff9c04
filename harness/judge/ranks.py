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
    for name in ("model", "enforce_eager", "dtype"):
        value, wanted = probe.effective_config.get(name), first.effective_config.get(name)
        if value != wanted:
            found.append(f"has {name}={value}, rank 0 has {wanted}")
    if bool(first.offloaded_bytes) != bool(probe.offloaded_bytes):
        which = ("holds", "does not") if probe.offloaded_bytes else ("holds no", "does")
        found.append(f"{which[0]} offloaded parameter, rank 0 {which[1]}")
    if probe.reported_offloaded_bytes != probe.offloaded_bytes:
        counts = f"{probe.reported_offloaded_bytes:,} against {probe.offloaded_bytes:,} bytes"
        found.append(f"has an offloader that miscounts: {counts}")
    for what, values in (
        (
            "pinned",
            [{p.is_pinned for p in each.params if p.is_offloaded} for each in (probe, first)],
        ),
        ("views", [{p.is_uva for p in each.params if p.is_offloaded} for each in (probe, first)]),
    ):
        if values[0] != values[1]:
            found.append(f"holds its offloaded parameters otherwise than rank 0 ({what})")
    return found
