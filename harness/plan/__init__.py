"""Settings into a Plan, with what each side must show: pure arithmetic, no engine."""

from .all_sizes import AllSizes, check_all_sizes
from .buffers import Unordered, Violation, check_schedule, check_waits, refill_order, slots
from .build import build_pair, build_plan, release_pairs, sort_out, with_unique_ids
from .capability import unsupported_reason
from .placement import expect
from .shapes import ParamShape, parameter_shapes

__all__ = [
    "AllSizes",
    "ParamShape",
    "Unordered",
    "Violation",
    "build_pair",
    "build_plan",
    "check_all_sizes",
    "check_schedule",
    "check_waits",
    "expect",
    "parameter_shapes",
    "refill_order",
    "release_pairs",
    "slots",
    "sort_out",
    "unsupported_reason",
    "with_unique_ids",
]
