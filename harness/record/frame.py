"""A session as a flat pandas frame: a row for each case, no nested values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core import CaseResult, Finding, Json

if TYPE_CHECKING:
    import pandas as pd

    from .load import Session

JUDGED = ("effect", "placement", "memory", "tokens")
"""Judges that always have a column, so that frames of any two sessions stack."""


def build_frame(session: Session) -> pd.DataFrame:
    """Build the frame.

    Columns: what the case is (`case_id`, `anchor`, `model`, `runner`, `backend`, `pin_memory`,
    `axis_*` and so on), its `verdict` with `lead_judge`, `cause` and `summary`, one
    `judge_<name>` verdict each (None when it abstained), sizes in bytes (`*_bytes`), margins in
    nats and durations in seconds (`*_s`).
    """
    import pandas as pd

    rows = [_row(session.session_id, result) for result in session.results]
    return pd.DataFrame(rows, columns=None if rows else list(_COLUMNS))


_COLUMNS = ("session_id", "case_id", "anchor", "verdict")


def _row(session_id: str, result: CaseResult) -> dict[str, Json]:
    findings = {f.judge: f for f in result.findings}
    lead = result.lead
    return {
        "session_id": session_id,
        "case_id": result.case.case_id,
        "anchor": result.case.anchor,
        "verdict": result.verdict.value,
        "lead_judge": lead.judge if lead else None,
        "cause": lead.evidence.get("cause") if lead else None,
        "summary": lead.summary if lead else None,
        **_case_columns(result),
        **{f"judge_{name}": None for name in JUDGED},
        **{f"judge_{name}": f.verdict.value for name, f in findings.items()},
        **_number_columns(result, findings),
        **_divergence_columns(findings.get("tokens")),
        "started_at": result.started_at,
        "duration_s": result.duration_s,
        "baseline_run_id": result.baseline_run_id,
        "target_run_id": result.target_run_id,
        "command": result.command,
    }


def _case_columns(result: CaseResult) -> dict[str, Json]:
    case, target = result.case, result.case.target
    return {
        "role": case.role,
        "behaved": result.behaved,
        "tier": case.tier.value,
        "model": case.workload.model.name,
        "stand_in_for": case.workload.model.stand_in_for,
        "dtype": case.workload.model.dtype,
        "workload": case.workload.name,
        "engine": target.engine,
        "runner": target.runner,
        "backend": target.offload.resolved_backend,
        "pin_memory": target.offload.pin_memory,
        "uva": target.offload.uva,
        "enforce_eager": target.enforce_eager,
        "multiprocessing": target.multiprocessing,
        "faults": "+".join(target.faults),
        "baseline_setting": case.baseline.setting_id,
        "target_setting": target.setting_id,
        **{f"axis_{name}": value for name, value in case.axes.items()},
    }


def _number_columns(result: CaseResult, findings: dict[str, Finding]) -> dict[str, Json]:
    def evidence(judge: str) -> Json:
        return findings[judge].evidence if judge in findings else {}

    memory, tokens = evidence("memory"), evidence("tokens")
    actual = evidence("placement").get("actual", {})
    return {
        "expected_offloaded_bytes": result.case.expected.offloaded_bytes,
        "offloaded_bytes": actual.get("bytes"),
        "expected_pool_bytes": result.case.expected.pool_bytes,
        "pool_bytes": actual.get("pool_bytes"),
        "num_offloaded_params": actual.get("num_params"),
        "saved_bytes": memory.get("saved_bytes"),
        "baseline_device_bytes": memory.get("baseline", {}).get("device_bytes"),
        "target_device_bytes": memory.get("target", {}).get("device_bytes"),
        "baseline_peak_bytes": memory.get("baseline", {}).get("device_peak_bytes"),
        "target_peak_bytes": memory.get("target", {}).get("device_peak_bytes"),
        "num_requests": tokens.get("num_requests"),
        "num_tokens": tokens.get("num_tokens"),
        "num_differing": tokens.get("num_differing"),
        "max_logprob_difference": tokens.get("max_logprob_difference"),
    }


def _divergence_columns(finding: Finding | None) -> dict[str, Json]:
    first = finding.divergence if finding else None
    return {
        "first_request_idx": first.request_idx if first else None,
        "first_token_idx": first.token_idx if first else None,
        "first_expected": first.expected if first else None,
        "first_actual": first.actual if first else None,
        "first_margin": first.margin if first else None,
        "first_near_tie": first.near_tie if first else None,
    }
