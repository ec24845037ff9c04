"""Stage 5: a case and its two runs -> findings, and a session's results -> its outcome."""

from .base import Judge
from .case import JUDGES, judge_case
from .verdict import conclude

__all__ = ["JUDGES", "Judge", "conclude", "judge_case"]
