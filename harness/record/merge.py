"""Shards of one matrix, run as separate jobs -> one session."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.core import CaseResult, Json, Outcome, RecordError

from .load import Session, load_session
from .store import Recorder
from .whole import count_planned, find_missing, find_shortfall


def merge_sessions(
    paths: Sequence[Path | str],
    out: Path | str,
    *,
    conclude: Callable[[Sequence[CaseResult]], Outcome] | None = None,
) -> Session:
    """Write the cases and runs of several sessions into a new one at `out`, and load it.

    A case that several shards ran (null cases, controls) is kept once; it must be the same case
    with the same verdict from every judge. Shards that are not whole, or not all there, never
    merge to a pass.

    Args:
        paths: what `load_session` takes, one for each shard.
        out: folder of the merged session; must not hold one yet.
        conclude: folds the merged results into the outcome (the judge stage's function); without
            it the merged session counts as unfinished.

    Raises:
        RecordError: no shard, a damaged one, or one case id with different content.
    """
    if not paths:
        raise RecordError("paths=[] names no session; give at least one shard to merge")
    shards = [load_session(path) for path in paths]
    kept = _merge_results(shards)
    num_cases = len(kept) + sum(count_planned(s) - len(s.results) for s in shards)
    gaps = [*_shortfalls(shards), *find_missing(shards)]
    with Recorder(Path(out), {**_manifest(shards, num_cases), "gaps": gaps}) as recorder:
        for shard in shards:
            _copy_runs(shard, recorder.runs_dir)
        for result in kept:
            recorder.save_result(result)
        if conclude is not None:
            outcome = conclude(kept)
            if gaps:
                outcome = outcome.incomplete(_sentence(gaps, len(kept), num_cases))
            recorder.close(outcome)
    return load_session(out)


def _shortfalls(shards: Sequence[Session]) -> list[str]:
    found = []
    for shard in shards:
        if what := find_shortfall(shard):
            part = shard.manifest.get("shard")
            found.append(f"{f'shard {part}, ' if part else ''}session {shard.session_id}: {what}")
    return found


def _sentence(gaps: Sequence[str], num_recorded: int, num_planned: int) -> str:
    shown = "; ".join(gaps[:4]) + (f"; and {len(gaps) - 4} more" if len(gaps) > 4 else "")
    return f"Incomplete: {num_recorded} of {num_planned} planned cases were recorded ({shown})."


def _merge_results(shards: Sequence[Session]) -> list[CaseResult]:
    kept: dict[str, CaseResult] = {}
    homes: dict[str, Path] = {}
    for shard in shards:
        for result in shard.results:
            case_id = result.case.case_id
            first = kept.setdefault(case_id, result)
            home = homes.setdefault(case_id, shard.folder)
            if differing := _differing(first, result):
                raise RecordError(
                    f"case_id={case_id!r} has different {differing} in {home} and "
                    f"{shard.folder}; merge only shards of one matrix, run at one version"
                )
    return list(kept.values())


def _differing(first: CaseResult, other: CaseResult) -> str:
    """What of two words on one case is not the same; times and numbers measured may differ."""
    if first.case != other.case:
        return "settings, workload or expectation"
    if first.verdict is not other.verdict:
        return f"verdicts ({first.verdict.value}, {other.verdict.value})"
    words = [{f.judge: f.verdict for f in r.findings} for r in (first, other)]
    return "" if words[0] == words[1] else "findings"


def _copy_runs(shard: Session, runs_dir: Path) -> None:
    source = shard.folder / "runs"
    if not source.is_dir():
        return
    for folder in sorted(p for p in source.iterdir() if p.is_dir()):
        if not (runs_dir / folder.name).exists():
            shutil.copytree(folder, runs_dir / folder.name)


def _manifest(shards: Sequence[Session], num_cases: int) -> Mapping[str, Json]:
    first = dict(shards[0].manifest)
    for name in ("session_id", "schema_version", "finished_at", "outcome", "num_recorded", "shard"):
        first.pop(name, None)
    starts = [str(s.manifest["started_at"]) for s in shards if "started_at" in s.manifest]
    return {
        **first,
        **({"started_at": min(starts)} if starts else {}),
        "models": _models(shards),
        "is_cut_short": any(s.manifest.get("is_cut_short") for s in shards),
        "num_cases": num_cases,
        "merged_from": [s.session_id for s in shards],
        "shard_problems": [f"{s.session_id}: {p}" for s in shards for p in s.problems],
    }


def _models(shards: Sequence[Session]) -> Json:
    """Every shard's models: name -> display name, or names alone where a shard has no more."""
    given = [s.manifest.get("models", {}) for s in shards]
    if all(isinstance(models, dict) for models in given):
        return {name: shown for models in given for name, shown in models.items()}
    return list(dict.fromkeys(name for models in given for name in models))
