"""The slot ring of prefetch offload: which slot each module uses, and which copy follows it.

A ring of M offloaded modules shares `step` slots of a static buffer pool. The invariant: whenever
a module computes, the last copy into its slot was its own and is done, and that copy began after
the slot's last reader was done. `check_schedule` proves whose copy it was, `check_waits` that it
was done; `all_sizes.check_all_sizes` asks both of every ring.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unordered:
    """Two accesses to one slot of which neither waits for the other."""

    kind: Literal["read", "write"]
    """The later access: a module's `read`, or the `write` of a copy."""
    slot_idx: int
    module_idx: int
    """The module that reads, or whose copy writes."""
    other_idx: int
    """The module of the earlier access."""


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


def check_waits(
    num_modules: int,
    step: int,
    refill: Sequence[int],
    *,
    copy_wait: bool = True,
    reader_wait: bool = True,
    num_passes: int = 3,
) -> list[Unordered]:
    """Follow events instead of time, and list accesses to a slot that nothing puts in order.

    Two streams, compute and copy, each in order. Before it computes, a module waits for the event
    behind its own latest copy; before a copy starts, the copy stream waits for compute so far.

    Args:
        num_modules: modules in the ring.
        step: slots in the pool.
        refill: for each module, the module whose copy starts once it has run.
        copy_wait: False takes the first wait away.
        reader_wait: False takes the second.
        num_passes: forward passes to follow.

    Returns:
        Unordered pairs as the host queued the later access; none for a correct rule with both
        waits.
    """
    slot_of = slots(num_modules, step)
    num_reads = 0
    compute_saw = copy_saw = 0  # how far each stream is ordered behind the other
    event: dict[int, int] = {}
    written: dict[int, tuple[int, int]] = {}  # slot -> (copy number, module)
    read: dict[int, tuple[int, int]] = {}  # slot -> (read number, module)
    unordered = []
    queue = [(-1, i) for i in range(min(step, num_modules))]
    queue += [(module, refill[module]) for _ in range(num_passes) for module in range(num_modules)]
    for num_copies, (module, copied) in enumerate(queue):
        if module >= 0:
            slot = slot_of[module]
            compute_saw = max(compute_saw, event.get(module, num_copies) if copy_wait else 0)
            number, owner = written.get(slot, (0, module))
            if number > compute_saw:
                unordered.append(Unordered(kind="read", slot_idx=slot, module_idx=module,
                                           other_idx=owner))  # fmt: skip
            num_reads += 1
            read[slot] = (num_reads, module)
        slot = slot_of[copied]
        copy_saw = num_reads if reader_wait else copy_saw
        number, owner = read.get(slot, (0, copied))
        if number > copy_saw:
            unordered.append(Unordered(kind="write", slot_idx=slot, module_idx=copied,
                                       other_idx=owner))  # fmt: skip
        event[copied] = num_copies + 1
        written[slot] = (num_copies + 1, copied)
    return unordered


def _check_ring(num_modules: int, step: int) -> None:
    if num_modules < 0 or step < 1:
        raise ValueError(f"num_modules={num_modules!r} must be >= 0 and step={step!r} >= 1")
