"""A session as one HTML file without network: styles and scripts inlined, all text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.core import CaseResult, Json, Outcome, Run

from .changes import LONGEST
from .releases import short_label
from .view import ReportView, build_view

_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_html(
    results: Sequence[CaseResult],
    runs: Mapping[str, Run],
    outcome: Outcome,
    manifest: Mapping[str, Json],
) -> str:
    """Render the whole report.

    Args:
        results: every case, controls included, in the order they ran.
        runs: run id -> run; may lack some.
        outcome: the session's outcome.
        manifest: the session's manifest; unknown or missing keys are fine.

    Returns:
        One self-contained HTML document. A content security policy inside it forbids every
        request and every script but its own two.
    """
    return render_view(build_view(results, runs, outcome, manifest))


def render_view(view: ReportView) -> str:
    """Render a view that is already built."""
    theme, script = _asset("theme.js"), _asset("report.js")
    hashes = " ".join(f"'{_source_hash(text)}'" for text in (theme, script))
    return (
        _environment()
        .get_template("index.html")
        .render(
            view=view,
            index=script_json(_index(view)),
            css=Markup(_asset("report.css")),
            theme_js=Markup(theme),
            report_js=Markup(script),
            longest=LONGEST,
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; "
            "img-src data:; base-uri 'none'; form-action 'none'",
        )
    )


def script_json(value: Json) -> Markup:
    """JSON that is safe inside a script block: no character can end the block or the line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for raw, escaped in _UNSAFE.items():
        text = text.replace(raw, escaped)
    return Markup(text)


def _index(view: ReportView) -> Json:
    """What the script needs to filter: one short object for each case."""
    cells = [
        {
            "a": cell.anchor,
            "id": cell.element_id,
            "v": cell.verdict,
            **cell.axes,
            "t": " ".join((cell.anchor, cell.row, cell.title, cell.verdict)).lower(),
        }
        for cell in view.cells
    ]
    return {"first": view.first_anchor, "axes": [axis for axis, _ in view.filters], "cells": cells}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("harness.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["label"] = short_label
    return environment


@cache
def _asset(name: str) -> str:
    text = files("harness.report").joinpath("assets", name).read_text(encoding="utf-8")
    assert "</script" not in text.lower(), f"asset {name} would end its own script block"
    return text


def _source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
