"""`harness doctor`: what each interpreter can test, and why not the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.core.codec import Json, encode
from harness.interpreters import examine
from harness.settings.engines import find_python, split_label

from .checks import Check, can_test, list_checks
from .console import JsonOption, out, print_json

NOTHING = 3
"""Exit code where an interpreter can test nothing."""


def doctor(
    python: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="[LABEL=]PATH", help="Interpreter; may repeat."),
    ] = None,
    json_: JsonOption = False,
) -> int:
    """Look at each interpreter in a child process and say what can be tested there."""
    named = [split_label(text) for text in python] if python else [("", sys.executable)]
    reports = [look_at(label, find_python(path, Path.cwd())) for label, path in named]
    if json_:
        print_json(reports)
    else:
        for report in reports:
            _print(report)
    return 0 if all(report["usable"] for report in reports) else NOTHING


def look_at(label: str, python: str) -> dict[str, Json]:
    """Ask one interpreter.

    Returns:
        `label`, `python`, `usable` (something can be tested there), `checks`, the `facts` they
        come from, and `problem`, one line, where nothing can be.
    """
    facts = examine(python)
    report: dict[str, Json] = {"label": label, "python": python, "usable": False, "checks": []}
    if "problem" in facts:
        return {**report, "problem": facts["problem"]}
    checks = list_checks(facts)
    report |= {"usable": can_test(checks), "checks": encode(checks), "facts": facts}
    if not report["usable"]:
        report["problem"] = _why_nothing(facts)
    return report


def _why_nothing(facts: dict[str, Json]) -> str:
    if "torch" in facts["missing"]:
        return "torch is not installed there, and no engine runs without it; install it"
    if problem := facts["live_torch"].get("problem"):
        return f"torch cannot be loaded there: {problem}"
    return "no engine is installed there that could run; the lines below say what is missing"


def _print(report: dict[str, Json]) -> None:
    version = f"Python {report['facts']['python']}" if "facts" in report else ""
    title = " ".join(x for x in (report["label"], version, f"({report['python']})") if x)
    out.print(title, style="bold", markup=False)
    if "problem" in report:
        out.print(f"  cannot be used: {report['problem']}", markup=False)
    checks = [Check(**check) for check in report["checks"]]
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        mark = "✓" if check.ok else "\N{EN DASH}"
        out.print(f"  {mark} {check.name:<{width}}   {check.found}", markup=False)
