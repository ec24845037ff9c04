"""Offload must hold for every model, setting, workload and schedule: generated, run, judged.

Hypothesis draws the examples and shrinks the first that fails; it is a development dependency and
is imported only when examples are drawn.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core import Run, RunKey, UsageError, Verdict, fold
from harness.faults import FAULTS, Fault
from harness.faults.base import mode_of
from harness.judge import judge_case
from harness.pipeline import Session
from harness.plan import expect

from .examples import MODES, Example, expected_verdict, make_examples, to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one example showed."""

    example: Example
    expected: Verdict
    """PASS, or VACUOUS where nothing can be offloaded as asked."""
    verdict: Verdict
    words: Mapping[str, str]
    """Judge -> `VERDICT: summary`."""

    @property
    def holds(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict is self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyReport:
    """All of them."""

    seed: int
    num_examples: int
    """Examples that were run while generating; each is a setting, a workload and a schedule."""
    counts: Mapping[str, int]
    """Verdict, mode, schedule, architecture, dtype and runner -> examples."""
    failure: Trial | None
    """The smallest example that does not hold; None when all do."""
    num_shrinks: int
    """Further examples run to make it small."""
    elapsed_s: float


class PropertyBrokenError(AssertionError):
    """Tells hypothesis that an example does not hold."""


class Prover:
    """Runs examples through a session's launcher, both sides at once; each example once.

    Args:
        session: an open session; nothing is recorded in it.
        cache_dir: folder for checkpoints.
    """

    def __init__(self, session: Session, cache_dir: Path) -> None:
        self.session = session
        self.cache_dir = cache_dir
        self.trials: dict[str, Trial] = {}

    def try_example(self, example: Example) -> Trial:
        """What the judges say of one example; the runs' folders are removed afterwards."""
        text = to_text(example)
        if text not in self.trials:
            self.trials[text] = self._run(example)
        return self.trials[text]

    def _run(self, example: Example) -> Trial:
        planned = example.plan(self.cache_dir)
        keys = {key.key: key for key in (planned.baseline_key, planned.target_key)}
        with ThreadPoolExecutor(len(keys)) as pool:
            runs = dict(zip(keys, pool.map(self._launch, keys.values()), strict=True))
        baseline, target = runs[planned.baseline_key.key], runs[planned.target_key.key]
        findings = judge_case(planned.case, baseline, target)
        return Trial(
            example=example,
            expected=expected_verdict(planned.case),
            verdict=fold(findings),
            words={f.judge: f"{f.verdict.value}: {f.summary}" for f in findings},
        )

    def _launch(self, key: RunKey) -> Run:
        run = self.session.launcher.launch(key)
        shutil.rmtree(self.session.recorder.runs_dir / key.key)
        return run


def prove_properties(
    prover: Prover,
    *,
    num_examples: int,
    seed: int = 0,
    fault: str | None = None,
    watch: Callable[[int], None] | None = None,
) -> PropertyReport:
    """Generate examples until one does not hold, and shrink that one.

    Args:
        prover: runs them.
        num_examples: how many, unless one fails before.
        seed: of the generator; the same seed and hypothesis version give the same examples.
        fault: planted in every target it applies to.
        watch: told the number of examples after each.

    Raises:
        UsageError: hypothesis is not installed, or the fault is unknown or cannot run.
    """
    started_at = time.monotonic()
    seen = _generate(prover, _where(fault), num_examples, seed, watch)
    first = next((i for i, trial in enumerate(seen) if not trial.holds), len(seen) - 1)
    generated = seen[: first + 1]
    return PropertyReport(
        seed=seed,
        num_examples=len(generated),
        counts=_count(generated),
        failure=None if seen[-1].holds else seen[-1],
        num_shrinks=len(seen) - len(generated),
        elapsed_s=round(time.monotonic() - started_at, 2),
    )


def _generate(
    prover: Prover,
    where: tuple[tuple[str, ...], tuple[str, ...]],
    num_examples: int,
    seed: int,
    watch: Callable[[int], None] | None,
) -> list[Trial]:
    """Every trial in order; the last one is the smallest that does not hold, if there is one."""
    try:
        import hypothesis as hy
        from hypothesis.configuration import set_hypothesis_home_dir
    except ImportError:
        raise UsageError("hypothesis is not installed: install offload-harness[dev]") from None
    seen: list[Trial] = []

    @hy.seed(seed)
    @hy.settings(
        max_examples=num_examples,
        database=None,
        deadline=None,
        phases=(hy.Phase.generate, hy.Phase.shrink),
        suppress_health_check=list(hy.HealthCheck),
        verbosity=hy.Verbosity.quiet,
        report_multiple_bugs=False,
    )
    @hy.given(example=make_examples(*where))
    def holds(example: Example) -> None:
        seen.append(prover.try_example(_applicable(example)))
        if watch is not None:
            watch(len(seen))
        if not seen[-1].holds:
            raise PropertyBrokenError(to_text(example))

    set_hypothesis_home_dir(prover.cache_dir / "hypothesis")
    try:
        holds()
    except PropertyBrokenError:
        pass  # hypothesis ends with the smallest
    finally:
        set_hypothesis_home_dir(None)
    return seen


def _where(fault: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modes to generate and faults to plant."""
    if fault is None:
        return MODES, ()
    found = FAULTS.get(fault)
    modes = tuple(mode for mode in MODES if mode in found.modes)
    is_late = found.workload != "default"
    if found.needs or is_late or not modes:
        reason = f"the engine has no {found.needs} yet" if found.needs else "it needs no offload"
        reason = f"it shows in the lifecycle {found.workload} only" if is_late else reason
        raise UsageError(f"fault {fault!r} cannot be planted here: {reason}")
    return modes, (fault,)


def _applicable(example: Example) -> Example:
    """The example without the faults that change nothing under its setting."""
    kept = tuple(name for name in example.faults if _applies(FAULTS.get(name), example))
    return replace(example, faults=kept)


def _applies(fault: Fault, example: Example) -> bool:
    if fault.why_not(example.setting):
        return False
    # what damages a live engine needs something offloaded to damage
    damages = fault.after_start is not None
    model = example.build_model("")
    return not damages or bool(expect(example.setting, model).offloaded_bytes)


def _count(trials: list[Trial]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for trial in trials:
        example = trial.example
        mode = mode_of(example.offload)
        counts.update(
            (trial.verdict.value, mode, example.schedule, example.architecture,
             example.dtype, example.runner)
        )  # fmt: skip
    return dict(sorted(counts.items()))
