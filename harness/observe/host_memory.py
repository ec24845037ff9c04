"""Host memory of this process and of its process group, by the kernel's account."""

from __future__ import annotations

import os
from pathlib import Path

from harness.core import HostMemory

PROC = Path("/proc")
_PGRP = 2
"""Place of the process group among what follows the name in `/proc/PID/stat`."""


def read_host_memory(proc: Path = PROC) -> HostMemory | None:
    """RSS and PSS of this process and of its group; None where the kernel does not tell them.

    Args:
        proc: where the kernel shows processes.
    """
    own = read_rollup(proc / "self")
    if own is None:
        return None
    group = [own, *filter(None, map(read_rollup, _others_of_group(proc)))]
    return HostMemory(
        rss_bytes=own[0],
        pss_bytes=own[1],
        group_rss_bytes=sum(rss for rss, _ in group),
        group_pss_bytes=sum(pss for _, pss in group),
        num_processes=len(group),
    )


def read_rollup(process: Path) -> tuple[int, int] | None:
    """RSS and PSS in bytes from `smaps_rollup`; None if it is not there, or not for us to read."""
    try:
        text = (process / "smaps_rollup").read_text()
    except OSError:  # ended meanwhile, another user's, or a kernel without it
        return None
    sizes = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if unit == "kB":
            sizes[name] = int(number) * 1024
    if "Rss" not in sizes or "Pss" not in sizes:
        return None
    return sizes["Rss"], sizes["Pss"]


def _others_of_group(proc: Path) -> list[Path]:
    """Folders of the other processes in this one's group."""
    own, group = str(os.getpid()), os.getpgrp()
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit() and folder.name != own and _group_of(folder) == group:
            found.append(folder)
    return found


def _group_of(process: Path) -> int | None:
    """The process group; the name before it in the line may hold spaces and brackets."""
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[_PGRP])
    except (OSError, IndexError, ValueError):  # ended while we looked
        return None
