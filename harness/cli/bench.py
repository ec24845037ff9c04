"""`harness bench`: ratios measured in one run, since machines differ and are noisy."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from harness.cells import plan_matrix
from harness.core import (
    LaunchError,
    OffloadConfig,
    Plan,
    PlannedCase,
    RunKey,
    RunStatus,
    Setting,
    UsageError,
)
from harness.core.codec import encode
from harness.pipeline import Options, Session
from harness.settings import load_matrix, load_model, load_workload

from .console import JsonOption, MatrixOption, err, out, print_json

PARTS = ("engine", "matrix", "instruments")
INSTRUMENTS: dict[str, tuple[str, ...]] = {
    "ordering": ("ordering",),
    "integrity, sampled": ("integrity",),
    "ordering and integrity (default)": ("ordering", "integrity"),
    "integrity, every read": ("integrity-full",),
    "poison": ("poison",),
    "ordering, every read, poison": ("ordering", "integrity-full", "poison"),
}
"""What is switched on against the same run with everything off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One measured ratio and what it was made of."""

    name: str
    ratio: float | None
    """None where the figure is not a ratio."""
    low: float | None = None
    high: float | None = None
    detail: str
    """The two figures, with units."""


def bench(
    model: Annotated[str, typer.Option(help="Model of the engine part.")] = "tiny-llama",
    matrix: MatrixOption = None,
    only: Annotated[str, typer.Option(help="engine, matrix or instruments; default all.")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Prompts at once.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens a prompt.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of all three.")] = 1,
    naive: Annotated[int, typer.Option(min=1, help="Cells sampled for the naive way.")] = 6,
    json_: JsonOption = False,
) -> int:
    """Measure the engine against transformers, and the matrix against the naive way."""
    if only and only not in PARTS:
        raise UsageError(f"--only {only!r} is not known; known: {', '.join(PARTS)}")
    ratios: list[Ratio] = []
    if only in ("", "engine"):
        ratios += bench_engine(model, batch=batch, tokens=tokens, rounds=rounds, threads=threads)
    if only in ("", "instruments"):
        ratios += bench_instruments(model, rounds=rounds)
    if only in ("", "matrix"):
        ratios += bench_matrix(matrix, sample=naive)
    if json_:
        print_json({"ratios": encode(ratios), "cores": len(os.sched_getaffinity(0))})
        return 0
    for r in ratios:
        spread = f"  ({r.low:.2f} .. {r.high:.2f})" if r.low is not None else ""
        figure = f"{r.ratio:.2f}{spread}" if r.ratio is not None else ""
        out.print(f"{r.name:<38} {figure:<24} {r.detail}", markup=False)
    return 0


def bench_engine(model: str, *, batch: int, tokens: int, rounds: int, threads: int) -> list[Ratio]:
    """Greedy tokens per second of both runners against transformers' generate, same checkpoint.

    Raises:
        LaunchError: the measuring child failed; its last line is in the text.
    """
    spec = load_model(model)
    request = {
        "path": spec.path,
        "dtype": spec.dtype,
        "vocab_size": spec.vocab_size,
        "batch": batch,
        "tokens": tokens,
        "rounds": rounds,
        "num_threads": threads,
    }
    err.print(f"engine: {model}, batch {batch}, {tokens} tokens, {rounds} rounds", style="dim")
    child = subprocess.run(
        [sys.executable, "-m", "harness.engines.throughput", json.dumps(request)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"},
    )
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        raise LaunchError(f"the throughput child ended with {child.returncode}: {last}")
    rates: dict[str, list[float]] = json.loads(child.stdout.splitlines()[-1])
    return [_rate_ratio(runner, rates) for runner in ("v2", "v1")]


def _rate_ratio(runner: str, rates: Mapping[str, Sequence[float]]) -> Ratio:
    pairs = [a / b for a, b in zip(rates[runner], rates["transformers"], strict=True)]
    ours, theirs = statistics.median(rates[runner]), statistics.median(rates["transformers"])
    return Ratio(
        name=f"{runner} without offload / transformers",
        ratio=statistics.median(pairs),
        low=min(pairs),
        high=max(pairs),
        detail=f"{ours:,.0f} and {theirs:,.0f} greedy tokens/s",
    )


def bench_instruments(model: str, *, rounds: int) -> list[Ratio]:
    """What each recorder costs: generating with it over generating without, launches in turn.

    Raises:
        LaunchError: a launch did not end well.
    """
    offload = OffloadConfig(offload_group_size=1, offload_prefetch_step=3)
    setting = Setting(runner="v2", offload=offload)
    workload = load_workload("default", load_model(model))
    arms = {"off": (), **INSTRUMENTS}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    err.print(f"instruments: {setting.setting_id}, {rounds} rounds", style="dim")
    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
        for repeat in range(rounds):
            for name, chosen in arms.items():
                chosen_setting = replace(setting, instruments=chosen)
                key = RunKey(setting=chosen_setting, workload=workload, repeat=repeat)
                run = session.run(key)
                if run.status is not RunStatus.OK:
                    raise LaunchError(f"{name}: ended as {run.status.value}: {run.error}")
                seconds[name].append(run.timings["generate"])
    return [_cost(name, seconds[name], seconds["off"]) for name in INSTRUMENTS]


def _cost(name: str, on: Sequence[float], off: Sequence[float]) -> Ratio:
    pairs = [a / b for a, b in zip(on, off, strict=True)]
    return Ratio(
        name=f"{name} / off",
        ratio=statistics.median(pairs),
        low=min(pairs),
        high=max(pairs),
        detail=f"{statistics.median(on):.3f} and {statistics.median(off):.3f} s of generating",
    )


def bench_matrix(matrix: Path | None, *, sample: int) -> list[Ratio]:
    """The matrix as `harness run` does it, against two cold launches a case, one at a time."""
    plan = plan_matrix(load_matrix(matrix))
    cells = [p for p in plan.cases if p.case.role == "case"]
    err.print(f"matrix: {len(plan.cases)} cases, {len(plan.runs)} runs", style="dim")
    with tempfile.TemporaryDirectory() as folder:
        ours_s, inside_s, jobs = _time_matrix(plan, Path(folder))
        step = max(1, len(cells) // sample)
        sampled = cells[::step][:sample]
        naive_s = _time_naive(sampled, Path(folder)) / len(sampled) * len(plan.cases)
    outside_s = (ours_s * jobs - inside_s) / len(plan.cases)
    return [
        Ratio(
            name="naive way / matrix",
            ratio=naive_s / ours_s,
            detail=f"{naive_s:.0f} s (two cold launches a case; {len(sampled)} of "
            f"{len(plan.cases)} cases timed and scaled) and {ours_s:.1f} s",
        ),
        Ratio(
            name="outside the engine, per case",
            ratio=None,
            detail=f"{outside_s * 1000:.0f} core-ms; {ours_s * jobs:.1f} core-s in all",
        ),
    ]


def _time_matrix(plan: Plan, folder: Path) -> tuple[float, float, int]:
    """Wall seconds of the whole plan, seconds inside engines, and launches at once."""
    started = time.perf_counter()
    with Session(folder, options=Options()) as session:
        outcome = session.run_plan(plan)
    if not outcome.passed:
        raise LaunchError(f"the matrix did not pass, its time means nothing: {outcome.sentence}")
    wall_s = time.perf_counter() - started
    inside_s = sum(
        sum(run.timings.get(part, 0.0) for part in ("load", "generate", "probe", "shutdown"))
        for run in session.runs.values()
    )
    return wall_s, inside_s, session.options.num_jobs


def _time_naive(cells: Sequence[PlannedCase], folder: Path) -> float:
    """Wall seconds of two cold launches for each cell, one after the other."""
    seconds = 0.0
    for planned in cells:
        with Session(folder, options=Options(jobs=1, cold=True)) as session:
            started = time.perf_counter()
            session.compare(planned)
            seconds += time.perf_counter() - started
            bad = [r for r in session.runs.values() if r.status is not RunStatus.OK]
        if bad:
            raise LaunchError(f"a cold launch ended as {bad[0].status.value}: {bad[0].error}")
    return seconds
