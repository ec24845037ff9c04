"""The prefetch schedule for every (layers, group, num, step) up to a bound, in seconds.

The ring depends on (offloaded modules, step) alone, so each such pair is played once and counted
for every setting that gives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .buffers import check_schedule, check_waits, refill_order

Refill = Callable[[int, int], Sequence[int]]
"""(modules, step) -> for each module, the module whose copy starts once it has run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSizes:
    """What every size showed."""

    num_settings: int
    """(layers, group, num, step) covered."""
    num_rings: int
    """Distinct (modules, step) played."""
    num_bad_settings: int
    bad_rings: tuple[tuple[int, int], ...]
    """(modules, step) with a violation, or with accesses that no wait puts in order."""
    num_empty_settings: int
    """Settings whose group leaves no module to offload."""


def ring_size(num_layers: int, group: int, num: int) -> int:
    """Modules that are offloaded when the last `num` of each `group` of layers are."""
    full, rest = divmod(num_layers, group)
    return full * num + max(0, rest - (group - num))


def wrap_around(num_modules: int, step: int) -> tuple[int, ...]:
    """The wrong rule of a public report: refill `(i + step) % M`, whoever owns the slot."""
    return tuple((module + step) % num_modules for module in range(num_modules))


def check_all_sizes(max_layers: int = 48, refill: Refill = refill_order) -> AllSizes:
    """Play a refill rule for all layers, groups and steps up to `max_layers`.

    Groups and steps larger than the stack are covered too, up to the bound.

    Args:
        max_layers: largest number of layers, of modules in a group, and of slots.
        refill: the rule.

    Raises:
        ValueError: the rule does not name a module of the ring for each module.
    """
    sizes: Counter[int] = Counter()
    for num_layers in range(1, max_layers + 1):
        for group in range(1, max_layers + 1):
            sizes.update(ring_size(num_layers, group, num) for num in range(1, group + 1))
    bad = [
        (modules, step)
        for modules in sorted(sizes)
        for step in range(1, max_layers + 1)
        if _is_bad(modules, step, refill(modules, step))
    ]
    return AllSizes(
        num_settings=sizes.total() * max_layers,
        num_rings=len(sizes) * max_layers,
        num_bad_settings=sum(sizes[modules] for modules, _ in bad),
        bad_rings=tuple(bad),
        num_empty_settings=sizes[0] * max_layers,
    )


def _is_bad(num_modules: int, step: int, refill: Sequence[int]) -> bool:
    return bool(check_schedule(num_modules, step, refill)) or bool(
        check_waits(num_modules, step, refill)
    )
