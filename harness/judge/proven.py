"""Words for what passed cells prove together, no stronger than what was seen in each."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core import CaseResult, RunStatus


def weights_words(passed: Sequence[CaseResult]) -> str:
    """What hashes proved: of what compute read, or only of what lay there after the last step."""
    hashed = [f.evidence for r in passed for f in r.findings if f.judge == "integrity"]
    modes = {side["mode"] for e in hashed for side in e.values()
             if isinstance(side, dict) and "mode" in side}  # fmt: skip
    if "rest" not in modes:
        return "compute read the right weights"
    return "weights were right" + (" at rest" if modes == {"rest"} else ", some hashed at rest")


def all_saved(passed: Sequence[CaseResult]) -> bool:
    """Whether each cell whose memory was judged holds fewer device bytes than its baseline."""
    found = [f for r in passed for f in r.findings if f.judge == "memory"]
    return all(int(f.evidence.get("saved_bytes", 0)) > 0 for f in found)


def is_absent(result: CaseResult) -> bool:
    """Whether its engine or interpreter is not there: one reason for all its cells."""
    lead = result.lead
    return lead is not None and lead.evidence.get("status") == RunStatus.ABSENT.value
