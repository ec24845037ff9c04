"""`harness doctor`: what this machine can run, and why not the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.core.codec import Json, encode

from .console import JsonOption, out, print_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked for."""

    name: str
    ok: bool
    found: str
    needed_for: str


def doctor(
    python: Annotated[
        list[str] | None, typer.Option("--python", help="Interpreter to look at; may repeat.")
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Look at each interpreter in a child process and say what can be tested there."""
    reports = [examine(path) for path in (python or [sys.executable])]
    if json_:
        print_json(reports)
    else:
        for found in reports:
            _print(found)
    return 0 if all(report["usable"] for report in reports) else 3


def examine(python: str) -> dict[str, Json]:
    """Ask one interpreter, in a child that imports nothing of the command line.

    Returns:
        `python`, `usable` (the reference engine runs), `checks`, and `problem` when it failed.
    """
    root = Path(__file__).resolve().parents[2]
    try:
        child = subprocess.run(
            [python, "-m", "harness.engines.examine"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=root,
        )
        facts = json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else None
        problem = (child.stderr.strip().splitlines() or ["no output"])[-1]
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        facts, problem = None, str(error)
    if facts is None:
        return {"python": python, "usable": False, "problem": problem, "checks": []}
    checks = _checks(facts)
    return {
        "python": f"{facts['python']} ({python})",
        "usable": checks[0].ok,
        "checks": encode(checks),
    }


def _checks(facts: dict[str, Json]) -> list[Check]:
    """Turn an interpreter's facts into checks; the first decides whether it is usable."""
    torch, cuda = facts["torch"], facts["cuda"]
    return [
        Check(
            name="reference engine, simulated device",
            ok=bool(torch),
            found=f"torch {torch}" if torch else "torch is not installed",
            needed_for="harness run",
        ),
        Check(
            name="reference engine, cuda device",
            ok=bool(cuda),
            found=cuda or "torch sees no CUDA device",
            needed_for="engine_args: {device: cuda}",
        ),
        Check(
            name="transformers",
            ok=bool(facts["transformers"]),
            found=facts["transformers"] or "not installed",
            needed_for="harness bench, the oracle tests",
        ),
        Check(
            name="vLLM",
            ok=False,
            found=f"vllm {facts['vllm']}, no adapter yet" if facts["vllm"] else "not installed",
            needed_for="real engines",
        ),
        Check(
            name="accelerate",
            ok=False,
            found=(
                f"accelerate {facts['accelerate']}, no adapter yet"
                if facts["accelerate"]
                else "not installed"
            ),
            needed_for="real engines",
        ),
        Check(
            name="cores",
            ok=facts["cores"] >= 1,
            found=f"{facts['cores']} usable, {facts['memory_gib']:.0f} GiB of memory",
            needed_for="-j",
        ),
    ]


def _print(found: dict[str, Json]) -> None:
    out.print(found["python"], style="bold", markup=False)
    if "problem" in found:
        out.print(f"  cannot be used: {found['problem']}", markup=False)
    for check in found["checks"]:
        mark = "✓" if check["ok"] else "\N{EN DASH}"
        out.print(
            f"  {mark} {check['name']:<36} {check['found']}  (for {check['needed_for']})",
            markup=False,
        )
