"""CI jobs from the list of cells: Buildkite steps and a GitHub matrix, sharded alike."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core import Json, UsageError

from .words import count, listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the matrix, before it has run."""

    anchor: str
    axes: Mapping[str, str]
    command: str
    """Runs this cell alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    label: str
    key: str
    timeout: int
    """Minutes."""
    command: str
    shard: str
    """`I/N`."""


def shard_cells(cells: Sequence[Cell], shard: int, num_shards: int) -> tuple[Cell, ...]:
    """The cells of shard `shard` (1 to `num_shards`), dealt in turn so that shards are alike.

    Raises:
        UsageError: the shard is outside 1 to `num_shards`.
    """
    if not 1 <= shard <= num_shards:
        raise UsageError(f"shard={shard!r} must be between 1 and num_shards={num_shards!r}")
    return tuple(cells[shard - 1 :: num_shards])


def buildkite_steps(
    cells: Sequence[Cell],
    *,
    shards: int,
    timeout_minutes: int,
    args: Sequence[str] = (),
    out_dir: str = "reports",
) -> dict[str, Json]:
    """A Buildkite pipeline with one step for each shard; as JSON it is valid YAML too.

    Args:
        cells: every cell of the matrix.
        shards: jobs to make; more than there are cells makes one job a cell.
        timeout_minutes: of each job.
        args: further arguments of `harness run`, e.g. `("--matrix", "nightly.yaml")`.
        out_dir: folder of the sessions, kept as artifacts.

    Raises:
        UsageError: no cell, or a count below 1.
    """
    return {
        "steps": [
            {
                "label": job.label.replace("$", "$$"),
                "key": job.key,
                "command": job.command.replace("$", "$$"),
                "timeout_in_minutes": job.timeout,
                "artifact_paths": [f"{out_dir}/**/*"],
                "env": {"HARNESS_SHARD": job.shard},
            }
            for job in _jobs(cells, shards, timeout_minutes, args)
        ]
    }


def github_matrix(
    cells: Sequence[Cell], shards: int, *, timeout_minutes: int = 30, args: Sequence[str] = ()
) -> dict[str, Json]:
    """A GitHub `strategy.matrix`: `{"include": [{label, key, timeout, command, shard}]}`.

    Raises:
        UsageError: no cell, or a count below 1.
    """
    return {
        "include": [
            {
                "label": job.label,
                "key": job.key,
                "timeout": job.timeout,
                "command": job.command,
                "shard": job.shard,
            }
            for job in _jobs(cells, shards, timeout_minutes, args)
        ]
    }


def _jobs(
    cells: Sequence[Cell], shards: int, timeout_minutes: int, args: Sequence[str]
) -> list[_Job]:
    for name, value in (("shards", shards), ("timeout_minutes", timeout_minutes)):
        if value < 1:
            raise UsageError(f"{name}={value!r} must be >= 1")
    if not cells:
        raise UsageError("no cell is left to make a job of; widen the selection")
    total = min(shards, len(cells))
    return [_job(cells, index, total, timeout_minutes, args) for index in range(1, total + 1)]


def _job(
    cells: Sequence[Cell], index: int, total: int, timeout_minutes: int, args: Sequence[str]
) -> _Job:
    mine = shard_cells(cells, index, total)
    shard = f"{index}/{total}"
    runners = listing(dict.fromkeys(c.axes["runner"] for c in mine if "runner" in c.axes))
    what = mine[0].anchor if len(mine) == 1 else count(len(mine), "cell")
    of = f" ({runners})" if runners and len(mine) > 1 else ""
    return _Job(
        label=f"offload {shard}: {what}{of}",
        key=_key(f"offload-{index}-of-{total}"),
        timeout=timeout_minutes,
        command=shlex.join(["harness", "run", "--shard", shard, *args]),
        shard=shard,
    )


def _key(text: str) -> str:
    """Only what both services allow in a key."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)
