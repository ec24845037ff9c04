"""Settings into a Plan, with what each side must show: pure arithmetic, no engine."""

from .buffers import Violation, check_schedule, refill_order, slots
from .build import build_pair, build_plan
from .capability import unsupported_reason
from .placement import ParamShape, expect, parameter_shapes

__all__ = [
    "ParamShape",
    "Violation",
    "build_pair",
    "build_plan",
    "check_schedule",
    "expect",
    "parameter_shapes",
    "refill_order",
    "slots",
    "unsupported_reason",
]
