"""Did both sides really run as asked? Read from live objects, never from flags or log lines.

VACUOUS: something asked for did not happen (runner, offloader, layers, pinning, UVA, process).
FAIL: something happened that nobody asked for, or the offloader's books contradict its parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from harness.core import Case, Expectation, Finding, Json, ProbeSnapshot, Run, Setting, Verdict
from harness.core.setting import ACCELERATE_BACKENDS

from .arguments import ArgumentCheck, argument_rows, check_arguments
from .base import count_bytes, finding, idle_ranks, nothing_offloaded, probe_of
from .ranks import check_ranks, count_alike, count_ranks, unmatched_selectors

VERSION = re.compile(r"\d+\.\d+")
"""A release's label that claims a version, and not just a name."""
OFFLOADERS = {
    "none": "NoopOffloader",
    "uva": "UVAOffloader",
    "prefetch": "PrefetchOffloader",
    **dict.fromkeys(ACCELERATE_BACKENDS, "AlignDevicesHook"),
}
"""Backend -> class name of the live object that must do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    name: str
    setting: Setting
    expected: Expectation
    probe: ProbeSnapshot
    run: Run
    ranks: tuple[Expectation, ...]
    """Of the further ranks, where they were computed."""
    model_paths: tuple[str, ...]
    """Of the checkpoint that was asked for."""

    @property
    def offloaded(self) -> list[bool]:
        """One item per live offloaded parameter: whether its host copy is pinned."""
        return [p.is_pinned for p in self.probe.params if p.is_offloaded]

    @property
    def asks_own_process(self) -> bool:
        """Whether the engine's core was to run apart, alone or behind a server."""
        return self.setting.multiprocessing or self.setting.server

    @property
    def num_uva(self) -> int:
        return sum(p.is_uva for p in self.probe.params if p.is_offloaded)

    @property
    def arguments(self) -> tuple[ArgumentCheck, ...]:
        return check_arguments(self.setting, self.probe)

    @property
    def num_layers(self) -> int:
        found = {p.layer_idx for p in self.probe.params if p.is_offloaded}
        return len(found - {None})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    verdict: Verdict
    cause: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.cause}: {self.detail}" if self.detail else self.cause


def judge_effect(case: Case, baseline: Run, target: Run) -> Finding:
    """Check what was asked of each side against what its live objects show.

    A null case is only asked that neither side offloads.
    """
    left = _side(case, "baseline", baseline)
    right = _side(case, "target", target)
    evidence: dict[str, Json] = {
        "rows": _rows(left, right),
        "warnings": {s.name: list(s.probe.warnings) for s in (left, right)},
        "num_offloaded_params": {s.name: len(s.offloaded) for s in (left, right)},
        "offloaded_bytes": {s.name: s.probe.offloaded_bytes for s in (left, right)},
        "ignored_requests": list(case.expected.ignored_requests),
        "unmatched_selectors": list(case.expected.unmatched_selectors),
        "unchecked_arguments": {
            s.name: [a.name for a in s.arguments if a.is_ok is None] for s in (left, right)
        },
    }
    if case.role == "null":
        problems = [p for side in (left, right) for p in _unasked(side)]
    else:
        problems = [p for side in (right, left) for p in _problems(side)]
    problems.sort(key=lambda p: p.verdict is not Verdict.FAIL)
    if not problems:
        return finding("effect", Verdict.PASS, _proof(left, right), evidence)
    evidence["problems"] = [p.text for p in problems]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    first = problems[0]
    return finding("effect", first.verdict, first.text + more, evidence, cause=first.cause)


def _side(case: Case, name: str, run: Run) -> _Side:
    is_target = name == "target"
    return _Side(
        name=name,
        setting=case.target if is_target else case.baseline,
        expected=case.expected if is_target else case.expected_baseline,
        probe=probe_of(run),
        run=run,
        ranks=case.expected_ranks if is_target else case.expected_baseline_ranks,
        model_paths=_model_paths(case, probe_of(run).step_idx),
    )


def _model_paths(case: Case, step_idx: int) -> tuple[str, ...]:
    """The model's path, and that of the checkpoint it was last reloaded from by that step."""
    steps = case.workload.steps if step_idx < 0 else case.workload.steps[: step_idx + 1]
    reloaded = [str(s.args["path"]) for s in steps if s.kind == "reload_weights"]
    return (case.workload.model.path, *reloaded[-1:])


def _problems(side: _Side) -> list[_Problem]:
    problems = [*_unasked(side), *_books(side), *_requests(side), *_identity(side), *_ranks(side)]
    if side.expected.backend == "none":
        return problems
    if not side.offloaded and not idle_ranks((side.expected, *side.ranks)) & {0}:
        problems.insert(0, _never(side))
        return problems
    return problems + _manner(side)


def _unasked(side: _Side) -> list[_Problem]:
    """Offload on a side that asked for none: the engine did what nobody asked."""
    if side.expected.backend != "none":
        return []
    if not side.probe.params:
        cause = f"no parameter of the {side.name} could be read"
        return [_Problem(verdict=Verdict.VACUOUS, cause=cause)]
    if side.probe.offloaded_bytes or side.probe.offloader_class != OFFLOADERS["none"]:
        detail = (
            f"{side.probe.offloader_class} is live with {len(side.offloaded)} parameters, "
            f"{count_bytes(side.probe.offloaded_bytes)}"
        )
        cause = f"the {side.name} offloads although it asked for none"
        return [_Problem(verdict=Verdict.FAIL, cause=cause, detail=detail)]
    return []


def _books(side: _Side) -> list[_Problem]:
    reported, found = side.probe.reported_offloaded_bytes, side.probe.offloaded_bytes
    if reported == found:
        return []
    detail = f"it counts {count_bytes(reported)}, the live parameters hold {count_bytes(found)}"
    cause = f"the {side.name}'s offloader miscounts"
    return [_Problem(verdict=Verdict.FAIL, cause=cause, detail=detail)]


def _requests(side: _Side) -> list[_Problem]:
    problems = []
    for request in side.expected.ignored_requests:
        cause = f"{request} was asked for, but the {side.expected.backend} backend never reads it"
        problems.append(_Problem(verdict=Verdict.VACUOUS, cause=cause))
    for selector in unmatched_selectors((side.expected, *side.ranks)):
        cause = f"selector {selector!r} matches no parameter"
        problems.append(_Problem(verdict=Verdict.VACUOUS, cause=cause))
    return problems


def _identity(side: _Side) -> list[_Problem]:
    """Model, runner, process and execution mode; the runner only where one was asked for."""
    problems = []
    asked, live = side.expected.runner, side.probe.runner
    if asked is not None and live != asked:
        cause = f"runner {asked} was asked for, {live or 'none'} is live"
        problems.append((cause, f"{side.name} runs {side.probe.runner_class}"))
    if side.asks_own_process != side.probe.is_core_process:
        word = "a process of its own" if side.asks_own_process else "this process"
        word = "its server's process" if side.setting.server else word
        cause = f"the engine core was asked to run in {word} and did not"
        problems.append((cause, f"{side.name}, process {side.probe.process_id}"))
    eager = side.probe.effective_config.get("enforce_eager")
    if eager is None:
        problems.append(("enforce_eager in effect could not be read", side.name))
    elif bool(eager) != side.setting.enforce_eager:
        cause = f"enforce_eager={side.setting.enforce_eager} was asked for, {eager} is in effect"
        problems.append((cause, side.name))
    label, version = side.setting.release, side.probe.engine_version
    if VERSION.match(label) and not version.startswith(label):
        problems.append((f"release {label} was asked for, {version} is live", side.name))
    model = side.probe.effective_config.get("model")
    if model is not None and PurePath(str(model)) not in map(PurePath, side.model_paths):
        problems.append((f"the {side.name} runs another model than asked", str(model)))
    problems += [(a.words, side.name) for a in side.arguments if a.is_ok is False]
    return [_Problem(verdict=Verdict.VACUOUS, cause=c, detail=d) for c, d in problems]


def _ranks(side: _Side) -> list[_Problem]:
    found = check_ranks(side.setting, side.run, side.ranks)
    return [_Problem(verdict=Verdict.VACUOUS, cause=c, detail=side.name) for c in found]


def _never(side: _Side) -> _Problem:
    if not side.expected.offloaded_params:
        cause = f"the {side.expected.backend} backend was asked for, but selects no parameter"
        detail = ", ".join(f"{s!r} matches none" for s in side.expected.unmatched_selectors)
        return _Problem(verdict=Verdict.VACUOUS, cause=cause, detail=detail)
    detail = (
        f"0 of {len(side.expected.offloaded_layers)} layers and 0 of "
        f"{count_bytes(side.expected.offloaded_bytes)} offloaded on the {side.name}"
    )
    return _Problem(verdict=Verdict.VACUOUS, cause=nothing_offloaded(side.run), detail=detail)


def _manner(side: _Side) -> list[_Problem]:
    """How the parameters that are offloaded are held: by whom, pinned or not, UVA or not."""
    total, num_pinned = len(side.offloaded), sum(side.offloaded)
    wanted = OFFLOADERS[side.expected.backend]
    problems = []
    if side.probe.offloader_class != wanted:
        cause = f"{wanted} was asked for, {side.probe.offloader_class} is live"
        problems.append((cause, side.name))
    if num_pinned != (total if side.expected.is_pinned else 0):
        cause = "pin_memory asked" if side.expected.is_pinned else "pin_memory=False not honoured"
        problems.append((cause, f"{num_pinned} of {total} pinned"))
    if side.num_uva != (total if side.expected.is_uva else 0):
        cause = "UVA views asked" if side.expected.is_uva else "UVA off not honoured"
        problems.append((cause, f"{side.num_uva} of {total} are views of host memory"))
    return [_Problem(verdict=Verdict.VACUOUS, cause=c, detail=d) for c, d in problems]


def _proof(left: _Side, right: _Side) -> str:
    if right.expected.backend == "none":
        return "Both sides ran as asked, and the target holds every parameter on the device."
    runner = f" under runner {right.probe.runner}" if right.probe.runner else ""
    other = left.probe.offloader_class
    return (
        f"Offload took effect: {right.probe.offloader_class} is live{runner} with "
        f"{right.num_layers} layers, {len(right.offloaded)} parameters, "
        f"{count_bytes(right.probe.offloaded_bytes)}, {sum(right.offloaded)} of them pinned; "
        f"the baseline runs {other} with {count_bytes(left.probe.offloaded_bytes)}."
    )


def _rows(left: _Side, right: _Side) -> list[Json]:
    """Requested against effective, a row for each thing: both asks, both answers, equal or not."""
    asked, live = [_asked(s) for s in (left, right)], [_live(s) for s in (left, right)]
    rows: list[Json] = []
    if max(a["all ranks"] for a in asked) == 1:
        del asked[1]["all ranks"]
    for name in asked[1]:
        pairs = [(a[name], b[name]) for a, b in zip(asked, live, strict=True)]
        rows.append(
            {
                "name": name,
                "asked": asked[1][name],
                "asked_baseline": asked[0][name],
                "baseline": live[0][name],
                "target": live[1][name],
                "ok": all(a is None or a == b for a, b in pairs),
            }
        )
    return rows + argument_rows(left.arguments, right.arguments)


def _asked(side: _Side) -> dict[str, Json]:
    expected, total = side.expected, len(side.expected.offloaded_params)
    return {
        "runner": expected.runner,
        "offloader": OFFLOADERS[expected.backend],
        "offloaded layers": len(expected.offloaded_layers),
        "offloaded parameters": total,
        "offloaded bytes": expected.offloaded_bytes,
        "pinned host copies": total if expected.is_pinned else 0,
        "UVA views": total if expected.is_uva else 0,
        "own core process": side.asks_own_process,
        "enforce_eager": side.setting.enforce_eager,
        "all ranks": count_ranks(side.setting, side.run),
    }


def _live(side: _Side) -> dict[str, Json]:
    return {
        "runner": side.probe.runner,
        "offloader": side.probe.offloader_class,
        "offloaded layers": side.num_layers,
        "offloaded parameters": len(side.offloaded),
        "offloaded bytes": side.probe.offloaded_bytes,
        "pinned host copies": sum(side.offloaded),
        "UVA views": side.num_uva,
        "own core process": side.probe.is_core_process,
        "enforce_eager": side.probe.effective_config.get("enforce_eager"),
        "all ranks": count_alike(side.run, side.ranks),
    }
