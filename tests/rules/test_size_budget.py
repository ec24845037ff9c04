"""A file answers one question: caps on the length of files and functions."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "harness"
FILE_CAP = 300
FUNCTION_CAP = 60
REFENGINE_CAP = 4500
"""Lines of code: docstrings, comments and blank lines left out."""


def count_code_lines(source):
    docs = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for i, x in lines if x.strip() and not x.strip().startswith("#") and i not in docs)


def modules():
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def functions(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(PACKAGE)}:{node.name}", node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file_and_its_functions_stay_short(path):
    lines = len(path.read_text().splitlines())
    too_long = {n: size for n, size in functions(path) if size > FUNCTION_CAP}

    assert lines <= FILE_CAP
    assert {} == too_long


def test_reference_engine_can_be_read_in_one_sitting():
    total = sum(count_code_lines(p.read_text()) for p in (PACKAGE / "refengine").rglob("*.py"))

    assert total <= REFENGINE_CAP


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_says_what_it_does(path):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""

    assert 1 <= len(docstring.splitlines()) <= 16
