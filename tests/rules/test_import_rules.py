"""Who may import whom: stages import core only, torch stays behind its wall."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "harness"
STAGES = ("settings", "plan", "launch", "judge", "record", "report")
TORCH_FOLDERS = ("engines", "refengine", "observe", "faults")
CHILD_ONLY = ("launch/worker.py", "launch/inside.py", "launch/other_engines.py")

ALLOWED = {
    "core": set(),
    **{stage: {"core"} for stage in STAGES},
    "engines": {"core", "refengine"},
    "observe": {"core", "engines.base"},
    "faults": {"core", "engines.base"},
    "refengine": set(),
    "progress.py": {"core"},
    "outputs.py": {"core"},
    "pipeline.py": {"rerun", "core", "progress", *STAGES},
    "rerun.py": {"core", "settings"},
    "interpreters.py": {"core", "settings", "launch"},
    "cells.py": {"core", "plan", "settings", "launch", "faults.base"},
    "triage": {"core", "pipeline", "cells", "plan", "settings", "faults", "judge"},
    "api.py": {
        "core",
        "pipeline",
        "outputs",
        "plan",
        "settings",
        "record",
        "triage",
        "interpreters",
    },
    "plugin.py": {"core", "pipeline", "cells", "settings", "api", "record", "interpreters"},
    "cli": {
        "core",
        "pipeline",
        "cells",
        "api",
        "settings",
        "record",
        "report",
        "judge",
        "triage",
        "faults",
        "interpreters",
        "rerun",
    },
    "__init__.py": {"api", "core"},
    "__main__.py": {"cli"},
}
"""Folder or file -> what of harness it may import; `engines.base` allows that module alone."""


def modules():
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def home(path):
    return path.relative_to(PACKAGE).parts[0]


def imports(path):
    """Absolute module names a file imports, relative ones resolved, with line numbers."""
    package = ("harness", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(x for x in (base, node.module or "") if x)
            yield node.lineno, module
            if not node.module or module == "harness":
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"


def violations(path):
    here, relative = home(path), str(path.relative_to(PACKAGE))
    allowed = ALLOWED[here] | {here}
    if relative in CHILD_ONLY:
        allowed |= {"engines", "observe", "faults", "refengine"}
    for line, module in imports(path):
        parts = module.split(".")
        if parts[0] == "torch" and here not in TORCH_FOLDERS:
            yield f"{relative}:{line} imports torch"
        if parts[0] != "harness" or len(parts) == 1:
            continue
        inner = ".".join(parts[1:])
        if parts[1] not in allowed and not any(inner.startswith(a) for a in allowed if "." in a):
            yield f"{relative}:{line} imports {module}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_imports_only_what_its_folder_may(path):
    assert [] == list(violations(path))


def test_a_forbidden_import_is_seen(tmp_path, monkeypatch):
    bad = PACKAGE / "judge" / "nowhere.py"
    source = "import torch\nfrom harness.plan import expect\nfrom .base import x\n"
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_kw: source)

    assert [
        "judge/nowhere.py:1 imports torch",
        "judge/nowhere.py:2 imports harness.plan",
    ] == list(violations(bad))


@pytest.mark.parametrize("module", ["harness", "harness.cli.main", "harness.plugin", "harness.api"])
def test_the_doors_load_neither_torch_nor_an_engine(module):
    import subprocess
    import sys

    heavy = ("torch", "harness.refengine")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert "[]" == child.stdout.strip()
