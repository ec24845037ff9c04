"""Who goes next on the simulated device: the order of concurrent work is a choice, not luck.

A scheduler sees the heads of all streams that could run now, and picks one. It decides nothing
that streams and events already order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol


class Head(Protocol):
    """What a scheduler may know of a piece of work at the head of its stream."""

    @property
    def seq(self) -> int:
        """Place in the host's launch order, over all streams."""
        ...

    @property
    def is_copy(self) -> bool:
        """True for a queued copy."""
        ...


class Scheduler(Protocol):
    """Picks the next piece of work; stateful ones must be deterministic."""

    def pick(self, heads: Sequence[Head]) -> int:
        """Return the index into `heads` (never empty, in order of stream creation)."""
        ...


class InOrder:
    """The order in which the host launched: every race is hidden."""

    def pick(self, heads: Sequence[Head]) -> int:
        """Pick the earliest launched."""
        return min(range(len(heads)), key=lambda i: heads[i].seq)


class Seeded:
    """Any order, chosen by a seed: the same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, heads: Sequence[Head]) -> int:
        """Pick at random."""
        return self._random.randrange(len(heads))


class CopyLate:
    """Copies run only when nothing else can: a missing wait for a copy shows."""

    def pick(self, heads: Sequence[Head]) -> int:
        """Pick the earliest launched that is no copy, else the earliest copy."""
        return min(range(len(heads)), key=lambda i: (heads[i].is_copy, heads[i].seq))


class ComputeLate:
    """Copies run as soon as they can: a missing wait for a reader shows."""

    def pick(self, heads: Sequence[Head]) -> int:
        """Pick the earliest copy, else the earliest launched."""
        return min(range(len(heads)), key=lambda i: (not heads[i].is_copy, heads[i].seq))


class Replay:
    """Follows a list of choices, then picks the first; notes each choice, and out of how many."""

    def __init__(self, choices: Sequence[int] = ()) -> None:
        self.choices = tuple(choices)
        self.taken: list[tuple[int, int]] = []

    def pick(self, heads: Sequence[Head]) -> int:
        """Pick what the list says at this point."""
        at = len(self.taken)
        choice = self.choices[at] if at < len(self.choices) else 0
        self.taken.append((choice, len(heads)))
        return choice


class Exhaustive:
    """Every interleaving, one scheduler each: run the same work afresh under each of them.

    Args:
        limit: Stop after this many; `is_complete` then stays False.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self.is_complete = False

    def __iter__(self) -> Iterator[Replay]:
        """Yield schedulers, each with the last choice that can still move moved by one."""
        choices: list[int] = []
        for _ in range(self.limit):
            schedule = Replay(choices)
            yield schedule
            taken = schedule.taken
            while taken and taken[-1][0] + 1 == taken[-1][1]:
                taken.pop()
            if not taken:
                self.is_complete = True
                return
            choices = [choice for choice, _ in taken]
            choices[-1] += 1


_FACTORIES: dict[str, Callable[[int], Scheduler]] = {
    "in_order": lambda _: InOrder(),
    "seeded": Seeded,
    "copy_late": lambda _: CopyLate(),
    "compute_late": lambda _: ComputeLate(),
}
SCHEDULES = tuple(_FACTORIES)
"""Names that `create_scheduler` knows."""


def create_scheduler(schedule: str, seed: int = 0) -> Scheduler:
    """Create a scheduler by name; `seed` matters to `seeded` only.

    Raises:
        ValueError: The name is unknown.
    """
    if schedule not in _FACTORIES:
        raise ValueError(f"schedule={schedule!r} must be one of {', '.join(SCHEDULES)}")
    return _FACTORIES[schedule](seed)
