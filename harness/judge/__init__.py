"""Stage 5: a case and its two runs -> findings, and a session's results -> its outcome."""

from .base import Judge
from .case import JUDGES, judge_case
from .verdict import conclude
from .waives import check_waive

__all__ = ["JUDGES", "Judge", "check_waive", "conclude", "judge_case"]
