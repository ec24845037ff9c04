"""A scripted engine without torch, for tests of the launcher, judges and reports.

`engine_args={"script": {...}}`; keys: `start`, `generate`, `probe`, `shutdown` (what happens there:
see `act`), `token_ids` (a list for each request), `snapshot` (an encoded ProbeSnapshot),
`report_env` (put the child's environment into the probe).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NoReturn, cast

from harness.core import (
    Json,
    MemoryTrace,
    ProbeSnapshot,
    RequestOutput,
    Setting,
    Step,
    Workload,
    decode,
)

from .base import EngineOutOfMemory, EngineRefused, InternalMovedError

STAGES = ("start", "generate", "probe", "shutdown")
KEYS = (*STAGES, "token_ids", "snapshot", "report_env")
OFFLOADERS = {"none": "NoopOffloader", "uva": "UVAOffloader", "prefetch": "PrefetchOffloader"}


class FakeModules:
    """A scripted engine has no modules."""

    def module(self, role: str) -> ModuleType:
        """Always refuse."""
        raise InternalMovedError(f"fake.{role}")


class FakeEngine:
    """Does what its script says; without one it answers each prompt with its own tokens."""

    supports = frozenset({"generate"})
    enters_itself = False
    rank_probes: tuple[ProbeSnapshot, ...] = ()

    def __init__(self) -> None:
        self.modules = FakeModules()
        self.script: Mapping[str, Json] = {}

    def start(self, setting: Setting, workload: Workload, *, num_threads: int) -> None:
        """Read the script; see `Engine.start`.

        Raises:
            EngineRefused: the setting has arguments other than `script`, or unknown keys in it.
        """
        self.setting, self.workload, self.num_threads = setting, workload, num_threads
        self.script = setting.engine_args.get("script", {})
        unknown = [k for k in setting.engine_args if k != "script"]
        unknown += [k for k in self.script if k not in KEYS]
        if unknown:
            raise EngineRefused(f"Unknown key {unknown[0]!r} of the script. Known: {KEYS}")
        self._act("start")

    def generate(self, step_idx: int) -> tuple[RequestOutput, ...]:
        """Return the scripted answers."""
        if self._act("generate") == "garbage":
            return cast("tuple[RequestOutput, ...]", ("no output at all",))
        num_tokens = self.workload.sampling_params.max_tokens
        given = self.script.get("token_ids")
        return tuple(
            RequestOutput(
                request_id=str(idx),
                step_idx=step_idx,
                prompt_token_ids=prompt,
                token_ids=tuple(given[idx] if given else (prompt * num_tokens)[:num_tokens]),
                finish_reason="length",
            )
            for idx, prompt in enumerate(self.workload.prompt_token_ids)
        )

    def rpc(self, method: str, *args: Json) -> Json:
        """A scripted engine has no worker to call."""
        raise InternalMovedError(f"fake.{method}{args!r}")

    def probe(self) -> ProbeSnapshot:
        """Return the scripted snapshot, or one that says what was asked for and no parameter."""
        self._act("probe")
        if "snapshot" in self.script:
            return decode(ProbeSnapshot, self.script["snapshot"])
        return ProbeSnapshot(
            engine_version="fake",
            runner_class=f"fake.{(self.setting.runner or 'v2').upper()}ModelRunner",
            runner=self.setting.runner or "v2",
            offloader_class=OFFLOADERS[self.setting.offload.resolved_backend],
            reported_offloaded_bytes=0,
            effective_config={"enforce_eager": self.setting.enforce_eager},
            env=dict(os.environ) if self.script.get("report_env") else {},
            process_id=os.getpid(),
            is_core_process=self.setting.multiprocessing,
        )

    def do(self, step: Step) -> None:
        """See `Engine.do`."""
        raise EngineRefused(f"step {step.name!r} is not one of this engine's")

    def leftover(self) -> MemoryTrace | None:
        """See `Engine.leftover`."""
        return None

    def shutdown(self) -> None:
        """Do what the script says."""
        self._act("shutdown")

    def _act(self, stage: str) -> str | None:
        action = self.script.get(stage)
        return act(**{action: None} if isinstance(action, str) else action) if action else None


def act(**action: Any) -> str | None:
    """Do one scripted thing: a word or `{word: value}`.

    `print` text, `crash` text, `refuse` text, `oom` text, `lacks` text (a package), `exit` code,
    `signal` number, `hang` (until ended), `hang_hard` (also against SIGTERM), `garbage`, `orphan`
    (leave a process behind).

    Raises:
        ValueError: the word is unknown.
    """
    ((word, value),) = action.items()
    if word == "garbage":
        return "garbage"
    if word == "print":
        sys.stdout.write(f"{value}\n")
        return None
    if word == "orphan":
        orphan = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        sys.stdout.write(f"orphan={orphan.pid}\n")
        return None
    if word == "hang_hard":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if word in ("hang", "hang_hard"):
        _hang()
    if word in ("exit", "signal"):
        sys.stdout.flush()
        os._exit(value) if word == "exit" else os.kill(os.getpid(), value)
    errors = {
        "crash": RuntimeError,
        "refuse": EngineRefused,
        "oom": EngineOutOfMemory,
        "lacks": ModuleNotFoundError,
    }
    raise errors.get(word, ValueError)(value or f"scripted {word}")


def _hang() -> NoReturn:
    sys.stdout.write("hanging\n")
    sys.stdout.flush()
    while True:
        signal.pause()
