"""The slot ring of prefetch offload: which slot each module uses, and which copy follows it.

A ring of M offloaded modules shares `step` slots of a static buffer pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One moment at which a schedule goes wrong."""

    kind: Literal["overwritten", "stale"]
    """`overwritten`: a copy replaced a module nobody had read yet. `stale`: a module was about to
    compute from another module's weights."""
    pass_idx: int
    """Forward pass, from 0."""
    module_idx: int
    """The module that ran (ring index)."""
    slot_idx: int
    expected: int | None
    """The module the slot should have held."""
    actual: int | None
    """The module it held, or was overwritten with; None when nothing was copied."""


def slots(num_modules: int, step: int) -> tuple[int, ...]:
    """Slot of each module of the ring.

    Raises:
        ValueError: `num_modules` is negative or `step` is below 1.
    """
    _check_ring(num_modules, step)
    return tuple(module % step for module in range(num_modules))


def refill_order(num_modules: int, step: int) -> tuple[int, ...]:
    """For each module, the module whose copy starts once it has run.

    The next user of the same slot: `i + step` while there is one, else the slot's first user, so
    that a slot keeps its owners whether or not `step` divides the ring.

    Raises:
        ValueError: `num_modules` is negative or `step` is below 1.
    """
    _check_ring(num_modules, step)
    following = (module + step for module in range(num_modules))
    return tuple(f if f < num_modules else f % step for f in following)


def check_schedule(
    num_modules: int, step: int, refill: Sequence[int], *, num_passes: int = 3
) -> list[Violation]:
    """Play a refill rule through several forward passes and list what goes wrong.

    Before the first pass the first `step` modules are copied. Each module then reads its slot and
    starts the copy of `refill[module]`; a copy of what a slot holds already changes nothing.

    Args:
        num_modules: modules in the ring.
        step: slots in the pool.
        refill: for each module, the module whose copy starts once it has run.
        num_passes: forward passes to play.

    Returns:
        Violations in the order they happen; none for a correct rule.

    Raises:
        ValueError: `refill` does not name one module of the ring for each module.
    """
    slot_of = slots(num_modules, step)
    if len(refill) != num_modules or any(not 0 <= i < num_modules for i in refill):
        raise ValueError(
            f"refill={list(refill)!r} must name a module from 0 to {num_modules - 1} "
            f"for each of {num_modules} modules"
        )
    held: dict[int, int] = {slot_of[i]: i for i in range(min(step, num_modules))}
    unread = set(held.values())
    violations = []
    for pass_idx in range(num_passes):
        for module, slot in enumerate(slot_of):
            if held.get(slot) != module:
                violations.append(
                    Violation(kind="stale", pass_idx=pass_idx, module_idx=module, slot_idx=slot,
                              expected=module, actual=held.get(slot))
                )  # fmt: skip
            unread.discard(module)
            copied = refill[module]
            target = slot_of[copied]
            lost = held.get(target)
            if lost is not None and lost != copied and lost in unread:
                violations.append(
                    Violation(kind="overwritten", pass_idx=pass_idx, module_idx=module,
                              slot_idx=target, expected=lost, actual=copied)
                )  # fmt: skip
                unread.discard(lost)
            held[target] = copied
            unread.add(copied)
    return violations


def _check_ring(num_modules: int, step: int) -> None:
    if num_modules < 0 or step < 1:
        raise ValueError(f"num_modules={num_modules!r} must be >= 0 and step={step!r} >= 1")
