"""Launches: one child process per run key, a deadline each, all of them ended on interrupt."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import harness
from harness.core import LaunchError, Run, RunKey, RunStatus, Setting
from harness.core.engine_names import VLLM
from harness.core.runfiles import OUTPUTS_FILE, PROBE_FILE, RUN_FILE, write_run

from .absent import Absences, is_absent
from .caches import locate_caches
from .classify import Ending, conclude_run, conclude_unstarted, describe_unstarted
from .environment import WarmKey, can_fork_warm, child_environment, kept_caches, warm_key
from .plugin_folder import register_plugin
from .process import Child, ChildLostError, ColdChild, NotStartedError, end_child
from .request import LOG_FILE, LaunchRequest, write_request
from .warm_parent import READY_TIMEOUT_S, WarmParent

GRACE_S = 3.0
"""Seconds between SIGTERM and SIGKILL."""

_logger = logging.getLogger("harness.launch")


class Launcher:
    """Starts runs and waits for them; a context manager. Thread-safe.

    Args:
        runs_dir: folder that gets one folder per run key.
        jobs: launches at once; a further one waits.
        num_threads: compute threads of each child.
        deadline_s: seconds a launch may take; longer is a HANG.
        cold: never fork from a warm parent.
    """

    def __init__(
        self,
        runs_dir: Path,
        *,
        jobs: int,
        num_threads: int = 1,
        deadline_s: float = 300.0,
        cold: bool = False,
    ) -> None:
        if jobs < 1:
            raise LaunchError(f"jobs={jobs!r} must be >= 1")
        self.runs_dir = runs_dir.absolute()
        self.num_threads = num_threads
        self.deadline_s = deadline_s
        self.cold = cold
        self._slots = threading.BoundedSemaphore(jobs)
        self._changed = threading.Condition()
        self._active: dict[str, Child] = {}
        self._is_interrupted = False
        self._absences = Absences()
        self._warm_lock = threading.Lock()
        self._folder_lock = threading.Lock()
        self._warm: dict[WarmKey, WarmParent | None] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        self.runs_dir.mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.TemporaryDirectory(prefix="harness-launch-")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.interrupt()
        with self._warm_lock:
            parents = [parent for parent in self._warm.values() if parent is not None]
            self._warm.clear()
        for parent in parents:
            parent.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def launch(self, key: RunKey) -> Run:
        """Launch `key` and wait for its run.

        Returns:
            The run, whatever became of it; its folder holds the same.

        Raises:
            LaunchError: the run folder cannot be made.
        """
        with self._slots:
            reason = None
            if not self._is_interrupted:
                reason = self._absences.find(key.setting, self._environment(key.setting))
            is_warm = reason is None and not self.cold and can_fork_warm(key.setting)
            if is_warm:
                self._warm_parent(key.setting)  # its start is not this launch's time
            started_at = time.monotonic()
            request = LaunchRequest(
                run_id=key.key,
                setting=key.setting,
                workload=key.workload,
                num_threads=self.num_threads,
                launched_at=time.time(),
                warm=is_warm,
            )
            folder = self._make_folder(key)
            if reason is not None:
                write_request(folder, request)
                run = conclude_unstarted(
                    folder, request, RunStatus.ABSENT, reason, time.monotonic() - started_at
                )
            else:
                run = self._run_or_start_again(folder, request, started_at)
            if run.status is RunStatus.ABSENT:
                self._absences.note(key.setting, run.error or "")
            if run.status is not RunStatus.OK:
                write_run(folder, run)
            return run

    def interrupt(self) -> None:
        """End all children; launches in progress and later ones return INTERRUPTED."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with self._changed:
                self._is_interrupted = True
                for child in self._active.values():
                    child.send(signum)
                if self._changed.wait_for(lambda: not self._active, GRACE_S):
                    return

    def _run_or_start_again(self, folder: Path, request: LaunchRequest, started_at: float) -> Run:
        """Run the child; cold, where its warm parent was lost."""
        try:
            return self._run_child(folder, request, started_at)
        except ChildLostError as error:
            self._give_up_warm(request.setting, str(error))
            with (folder / LOG_FILE).open("a") as log:
                log.write(f"harness: {error}; starting again, cold\n")
            return self._run_child(folder, replace(request, warm=False), time.monotonic())

    def _run_child(self, folder: Path, request: LaunchRequest, started_at: float) -> Run:
        write_request(folder, request)
        returncode: int | None = 0
        ending = Ending.INTERRUPT
        try:
            child = self._start(folder, request)
        except NotStartedError as error:
            status = RunStatus.ABSENT if error.is_absent else RunStatus.CRASH
            elapsed_s = time.monotonic() - started_at
            return conclude_unstarted(folder, request, status, str(error), elapsed_s)
        if child is not None:
            try:
                returncode = child.wait(self.deadline_s)
                ending = Ending.BY_ITSELF
                if returncode is None:
                    ending = Ending.DEADLINE
                    returncode = end_child(child, grace_s=GRACE_S)
            except KeyboardInterrupt:
                end_child(child, grace_s=GRACE_S)
                raise
            finally:
                with self._changed:
                    del self._active[request.run_id]
                    self._changed.notify_all()
        if self._is_interrupted and (returncode != 0 or not (folder / RUN_FILE).exists()):
            ending = Ending.INTERRUPT
        return conclude_run(
            folder,
            request,
            ending=ending,
            returncode=-9 if returncode is None else returncode,
            elapsed_s=time.monotonic() - started_at,
            deadline_s=self.deadline_s,
        )

    def _start(self, folder: Path, request: LaunchRequest) -> Child | None:
        """Start the child and enter it among the active ones; None when interrupted."""
        setting = request.setting
        env = self._environment(setting)
        warm = self._warm_parent(setting) if request.warm else None
        if request.warm and warm is None:
            raise ChildLostError("there is no warm parent")
        with self._changed:
            if self._is_interrupted:
                return None
            if request.run_id in self._active:
                raise LaunchError(f"run {request.run_id!r} is being launched already")
            child: Child
            if warm is not None:
                child = warm.fork(folder, env)
            else:
                python = setting.python or sys.executable
                argv = [python, "-m", "harness.launch.worker", str(folder)]
                try:
                    child = ColdChild(argv, env, folder / LOG_FILE)
                except OSError as error:
                    absent = is_absent(error, python)
                    text = describe_unstarted(setting, error, is_absent=absent)
                    raise NotStartedError(text, is_absent=absent) from None
            self._active[request.run_id] = child
            self._changed.notify_all()
        return child

    def _environment(self, setting: Setting) -> dict[str, str]:
        env = child_environment(setting, num_threads=self.num_threads)
        is_own = setting.python is None and setting.engine not in VLLM
        env["PYTHONPATH"] = str(self._package_root(is_own=is_own))
        if setting.engine in VLLM:
            env |= locate_caches(setting, self._scratch_dir / "cache", kept_caches())
        return env

    def _package_root(self, *, is_own: bool) -> Path:
        """A folder from which `harness` can be imported; for another interpreter, only that."""
        package = Path(harness.__file__).absolute().parent
        if is_own:
            return package.parent
        with self._folder_lock:
            link = self._scratch_dir / "only" / "harness"
            if not link.exists():
                link.parent.mkdir()
                link.symlink_to(package, target_is_directory=True)
                register_plugin(link.parent)
        return link.parent

    @property
    def _scratch_dir(self) -> Path:
        assert self._scratch is not None, "use the launcher in a with block"
        return Path(self._scratch.name)

    def _warm_parent(self, setting: Setting) -> WarmParent | None:
        """The warm parent for this setting, started when first asked for; None if it has died."""
        key = warm_key(setting)
        with self._warm_lock:
            if key not in self._warm:
                python = setting.python or sys.executable
                bare = Setting(engine=setting.engine, python=setting.python,
                               release=setting.release, env=dict(key.env))  # fmt: skip
                log = self._scratch_dir / f"warm-{len(self._warm)}.log"
                try:
                    self._warm[key] = WarmParent(
                        python,
                        setting.engine,
                        self._environment(bare),
                        log,
                        timeout_s=min(self.deadline_s, READY_TIMEOUT_S),
                    )
                except OSError as error:
                    if not is_absent(error, python):  # else the cold start will say so
                        _logger.warning("no warm parent: %s; launches start cold", error)
                    self._warm[key] = None
                except ChildLostError as error:
                    _logger.warning("%s; launches start cold", error)
                    self._warm[key] = None
            return self._warm[key]

    def _give_up_warm(self, setting: Setting, reason: str) -> None:
        key = warm_key(setting)
        with self._warm_lock:
            parent = self._warm.get(key)
            self._warm[key] = None
        if parent is not None:
            _logger.warning("%s; launches start cold", reason)
            parent.close()

    def _make_folder(self, key: RunKey) -> Path:
        folder = self.runs_dir / key.key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (RUN_FILE, OUTPUTS_FILE, PROBE_FILE, LOG_FILE):
                (folder / name).unlink(missing_ok=True)
            (folder / LOG_FILE).touch()
        except OSError as error:
            raise LaunchError(f"run folder {folder} cannot be made: {error}") from None
        return folder
