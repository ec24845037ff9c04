"""The words and marks the pages share: verdict marks, proof headings, numbers with units."""

from __future__ import annotations

from collections.abc import Iterable

from harness.core import Outcome, Verdict

MARKS: dict[str, str] = {
    "PASS": "✓",
    "FAIL": "✕",
    "VACUOUS": "∅",
    "UNSUPPORTED": "–",  # noqa: RUF001
    "ERROR": "!",
}
"""One character for each verdict, so that colour is never the only sign."""

MEANINGS: dict[str, str] = {
    "PASS": "proven right",
    "FAIL": "disproved",
    "VACUOUS": "the asked-for effect is unproven, or nothing was compared",
    "UNSUPPORTED": "refused by the engine",
    "ERROR": "did not run, or could not be probed",
}


EMULATION = "CPU tensors, copies at once, so no race can show"
"""What an engine whose name ends in `-emulation` stands for; said wherever it is shown."""

PROOFS: tuple[str, ...] = (
    *("effect", "placement", "memory"),
    *("ordering", "integrity", "tokens"),
)
"""Judges in the order a reader should meet them; others follow."""

_HEADINGS: dict[str, dict[str, str]] = {
    "effect": {"PASS": "took effect", "FAIL": "wrong effect", "VACUOUS": "never took effect"},
    "placement": {
        "PASS": "right place",
        "FAIL": "wrong place",
        "VACUOUS": "place not proven",
    },
    "memory": {
        "PASS": "memory saved",
        "FAIL": "memory not saved",
        "VACUOUS": "saving not proven",
    },
    "ordering": {
        "PASS": "right order",
        "FAIL": "wait is missing",
        "VACUOUS": "order not proven",
    },
    "integrity": {
        "PASS": "right weights",
        "FAIL": "wrong weights",
        "VACUOUS": "weights not proven",
    },
    "tokens": {"PASS": "same output", "FAIL": "output differs", "VACUOUS": "nothing compared"},
}


def describe_downgrade(outcome: Outcome) -> str:
    """Said wherever a session's verdicts stand, when a null run is not exact; empty otherwise."""
    if not outcome.downgraded:
        return ""
    if not outcome.not_exact:
        return "EXACT verdicts are downgraded: the null run is not exact"
    return f"EXACT verdicts of {listing(outcome.not_exact)} are downgraded: null runs not exact"


def is_emulation(engine: str) -> bool:
    """Whether an engine only emulates what is under test."""
    return engine.endswith("-emulation")


def proof_heading(judge: str, verdict: Verdict) -> str:
    """Heading of a proof tile."""
    headings = _HEADINGS.get(judge, {})
    if verdict.value in headings:
        return headings[verdict.value]
    return f"{judge}: {MEANINGS[verdict.value]}" if verdict is not Verdict.PASS else judge


def format_bytes(num_bytes: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1: `45.1 MiB`, `512 B`."""
    value, sign = float(abs(num_bytes)), "-" if num_bytes < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{sign}{int(value)} B" if unit == "B" else f"{sign}{value:,.1f} {unit}"


def exact_bytes(num_bytes: int) -> str:
    """Bytes to the byte, with thousands separated: `188,776,448 B`."""
    return f"{num_bytes:,} B"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 cell`, `2 cells`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def capitalised(sentence: str) -> str:
    """The sentence with a capital, unless it starts with a name such as `cpu_offload_gb=1`."""
    first = sentence.split(" ", 1)[0]
    return sentence[0].upper() + sentence[1:] if first.isalpha() and first.islower() else sentence


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7, 9-10`; `none` for no number."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"


def listing(items: Iterable[str], limit: int = 4) -> str:
    """`a, b, c and 3 more`."""
    every = list(items)
    head = ", ".join(every[:limit])
    return f"{head} and {len(every) - limit} more" if len(every) > limit else head
