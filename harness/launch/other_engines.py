"""Other engines of the same process: one that ran before, or one that answers beside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.core import HarnessError, OffloadConfig, Setting, Step, Workload
from harness.engines import ENGINES, Engine


class OtherEngines:
    """Starts and ends them, each with offload fields and variables of its own.

    Args:
        setting: of the engine under test.
        workload: what each of them is asked.
        num_threads: compute threads of each.
    """

    def __init__(self, setting: Setting, workload: Workload, *, num_threads: int) -> None:
        self._setting = setting
        self._workload = workload
        self._num_threads = num_threads
        self._beside: list[Engine] = []

    def run_before(self) -> None:
        """Run every `engine_before` of the workload, one after the other, each to its end."""
        for step in self._workload.steps:
            if step.kind == "engine_before":
                self._start(step).shutdown()

    def take(self, step: Step) -> None:
        """Start the engine that a step asks for and let it answer, or end those that live.

        One that was to run before has done so.

        Raises:
            HarnessError: there is none to end.
        """
        if step.kind == "engine_beside":
            self._beside.append(self._start(step))
        elif step.kind == "end_beside":
            if not self._beside:
                raise HarnessError("step kind='end_beside': no engine was started beside")
            self.end()

    def end(self) -> None:
        """End all that live."""
        while self._beside:
            self._beside.pop().shutdown()

    def _start(self, step: Step) -> Engine:
        setting = other_setting(self._setting, step.args.get("offload") or {})
        engine: Engine = ENGINES.get(setting.engine)()
        mine = {name: os.environ.get(name) for name in setting.engine_env()}
        _set_env(setting.engine_env())
        try:
            engine.start(setting, self._workload, num_threads=self._num_threads)
            engine.generate(0)
        except BaseException:
            engine.shutdown()
            raise
        finally:
            _set_env(mine)
        return engine


def other_setting(setting: Setting, fields: Mapping[str, Any]) -> Setting:
    """The setting of another engine: the same but for its offload, without faults or recorders."""
    known: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    return replace(setting, offload=OffloadConfig(**known), faults=(), instruments=())


def _set_env(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
