"""CaseResults and Runs in; HTML, terminal text, JUnit, a step summary and CI jobs out."""

from .coverage import CoverageRow, view_coverage
from .history import histories
from .html import render_html
from .junit import render_junit
from .markdown import render_markdown
from .pipelines import Cell, buildkite_steps, github_matrix, shard_cells
from .terminal import case_line, explain, summary
from .view import ReportView, build_view

__all__ = [
    "Cell",
    "CoverageRow",
    "ReportView",
    "buildkite_steps",
    "build_view",
    "case_line",
    "explain",
    "github_matrix",
    "histories",
    "render_html",
    "render_junit",
    "render_markdown",
    "shard_cells",
    "summary",
    "view_coverage",
]
