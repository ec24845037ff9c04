"""The child's main: read a request, plant faults, drive the engine, probe, write the run.

Imports no command line, store or report: the interpreter it runs under has the engine and little
else. `python -m harness.launch.worker FOLDER`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.core import (
    HarnessError,
    HostInfo,
    MemoryTrace,
    ProbeSnapshot,
    RequestOutput,
    Run,
    RunStatus,
    Setting,
    Workload,
)
from harness.core.runfiles import write_run
from harness.core.workload import OTHER_ENGINE
from harness.engines import (
    ENGINES,
    Engine,
    EngineOutOfMemory,
    EngineRefused,
    InternalMovedError,
)
from harness.faults import plant_after_start, plant_before_start, planted_faults

from .other_engines import OtherEngines
from .request import LaunchRequest, read_request

T = TypeVar("T")
PRELOADED = (
    "harness.observe",
    "harness.observe.checkpoint",
    "harness.observe.extension",
    "harness.faults.weights",
)


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a launch has shown so far; kept when a later stage fails."""

    stage: str = "import"
    timings: dict[str, float] = field(default_factory=dict)
    outputs: list[RequestOutput] = field(default_factory=list)
    probe: ProbeSnapshot | None = None
    rank_probes: tuple[ProbeSnapshot, ...] = ()
    step_probes: list[ProbeSnapshot] = field(default_factory=list)
    step_rank_probes: list[ProbeSnapshot] = field(default_factory=list)
    leftover: MemoryTrace | None = None
    planted_faults: tuple[str, ...] = ()
    device: str = "unknown"

    def timed(self, stage: str, call: Callable[[], T]) -> T:
        """Call, and add the seconds it took to `timings[stage]`, also when it fails."""
        self.stage = stage
        started_at = time.perf_counter()
        try:
            return call()
        finally:
            elapsed_s = time.perf_counter() - started_at
            self.timings[stage] = round(self.timings.get(stage, 0.0) + elapsed_s, 6)


def preload(engine: str) -> None:
    """Import all that a launch of `engine` needs, and build nothing."""
    ENGINES.get(engine)
    if engine != "fake":
        for name in PRELOADED:
            importlib.import_module(name)


def child_main(folder: Path) -> int:
    """Run the request in `folder` in a process of its own; the exit code is 0 if a run is written.

    A deadline ends the process with SIGTERM; the log then shows where it stood.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)
    run_request(folder, read_request(folder))
    return 0


def run_request(folder: Path, request: LaunchRequest) -> Run:
    """Run one request and write its run, whatever becomes of it."""
    started_at = time.perf_counter()
    spawn_s = max(0.0, time.time() - request.launched_at)
    progress = Progress(timings={"spawn": round(spawn_s, 6)})
    status, error = RunStatus.OK, None
    try:
        _drive(request, progress)
    except Exception as caught:  # every failure of an engine is a run, told apart by type
        status, error = classify_exception(caught, progress.stage)
        traceback.print_exc()
    progress.timings["total"] = round(spawn_s + time.perf_counter() - started_at, 6)
    run = Run(
        run_id=request.run_id,
        setting=request.setting,
        status=status,
        outputs=tuple(progress.outputs),
        probe=progress.probe,
        rank_probes=progress.rank_probes,
        step_probes=tuple(progress.step_probes),
        step_rank_probes=tuple(progress.step_rank_probes),
        leftover=progress.leftover,
        host=read_host(request, progress.device),
        timings=progress.timings,
        warm=request.warm,
        planted_faults=progress.planted_faults,
        error=error,
    )
    write_run(folder, run)
    return run


def classify_exception(error: Exception, stage: str) -> tuple[RunStatus, str]:
    """Status and one line for what an engine raised in `stage`."""
    text = " ".join(str(error).split())
    if isinstance(error, EngineRefused):
        return RunStatus.UNSUPPORTED, text
    if isinstance(error, EngineOutOfMemory):
        return RunStatus.OOM, text
    return RunStatus.CRASH, f"{type(error).__name__} in {stage}: {text}"


def read_host(request: LaunchRequest, device: str) -> HostInfo:
    """This machine and interpreter, and the device that the live worker uses."""
    torch = sys.modules.get("torch")
    return HostInfo(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu_count=os.cpu_count() or 1,
        num_threads=request.num_threads,
        torch=None if torch is None else str(torch.__version__),
        device=device,
    )


def read_device(engine: Engine) -> str:
    """Kind of device, asked of the live worker; `unknown` of an engine that has no worker."""
    try:
        return str(engine.rpc("harness_device"))
    except InternalMovedError:
        return "unknown"


def begin_anew(engine: Engine) -> None:
    """Let recorders begin anew in the live worker; an engine without a worker has none."""
    with contextlib.suppress(InternalMovedError):
        engine.rpc("harness_step")


def _drive(request: LaunchRequest, progress: Progress) -> None:
    setting, workload = request.setting, request.workload
    engine: Engine = progress.timed("import", partial(ENGINES.get, setting.engine))()
    check_steps(workload, setting, engine)
    try:
        progress.stage = "planting a fault"
        others = OtherEngines(setting, workload, num_threads=request.num_threads)
        if not engine.enters_itself:
            _say(plant_before_start(setting, engine))
            install_instruments(setting, engine)
        progress.timed("engine before", others.run_before)
        start = partial(engine.start, setting, workload, num_threads=request.num_threads)
        progress.timed("load", start)
        progress.device = read_device(engine)
        progress.stage = "planting a fault"
        _say(plant_after_start(setting, engine))
        progress.planted_faults = planted_faults(setting, engine)
        for step_idx, step in enumerate(workload.steps):
            take_step(engine, others, progress, workload, step_idx)
            if workload.is_lifecycle and step.kind != "engine_before":
                probe = progress.timed("probe", engine.probe)
                progress.step_probes.append(replace(probe, step_idx=step_idx))
                further = (replace(each, step_idx=step_idx) for each in engine.rank_probes)
                progress.step_rank_probes += further
                begin_anew(engine)
        if progress.step_probes:
            progress.probe = replace(progress.step_probes[-1], step_idx=-1)
        else:
            progress.probe = progress.timed("probe", engine.probe)
        progress.rank_probes = engine.rank_probes
    except BaseException:
        _shut_down_failed(engine)
        raise
    others.end()
    progress.timed("shutdown", engine.shutdown)
    progress.leftover = engine.leftover()


def check_steps(workload: Workload, setting: Setting, engine: Engine) -> None:
    """Refuse a workload with a step that the engine does not have.

    Raises:
        EngineRefused: naming the step and what the engine has.
    """
    for step in workload.steps:
        if step.kind not in engine.supports and step.kind not in OTHER_ENGINE:
            known = ", ".join(sorted(engine.supports))
            raise EngineRefused(
                f"step kind={step.kind!r} is not supported by engine {setting.engine!r}: {known}"
            )


def take_step(
    engine: Engine, others: OtherEngines, progress: Progress, workload: Workload, step_idx: int
) -> None:
    """Do one step; answers go to `progress.outputs`."""
    step = workload.steps[step_idx]
    if step.kind == "generate":
        outputs = progress.timed("generate", partial(engine.generate, step_idx))
        progress.outputs += check_outputs(outputs, len(workload.prompt_token_ids))
    elif step.kind in OTHER_ENGINE:
        progress.timed(step.kind, partial(others.take, step))
    else:
        progress.timed(step.kind, partial(engine.do, step))


def install_instruments(setting: Setting, engine: Engine) -> None:
    """Put the setting's recorders in place; the probe reads them."""
    if setting.instruments:
        from harness.observe import install

        install(setting.instruments, engine.modules)


def check_outputs(outputs: object, num_requests: int) -> tuple[RequestOutput, ...]:
    """Refuse anything but one answer for each request.

    Raises:
        HarnessError: the engine answered with something else.
    """
    ok = isinstance(outputs, tuple) and all(isinstance(o, RequestOutput) for o in outputs)
    if not ok or not isinstance(outputs, tuple) or len(outputs) != num_requests:
        raise HarnessError(f"expected {num_requests} answers, the engine gave {outputs!r:.80}")
    return outputs


def _shut_down_failed(engine: Engine) -> None:
    """Free what a failed engine holds; the failure itself is what the run reports."""
    try:
        engine.shutdown()
    except Exception:
        traceback.print_exc()


def _say(notes: list[str]) -> None:
    for note in notes:
        sys.stdout.write(f"harness: {note}\n")


if __name__ == "__main__":
    sys.exit(child_main(Path(sys.argv[1])))
