"""The engine core in a process of its own: JSON messages over a pipe, one answer to each call.

A core that dies is reported with what it last said, and never keeps its caller waiting.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from .config import ConfigError, EngineConfig, OffloadConfig, UnsupportedSettingError
from .device import OutOfDeviceMemoryError
from .engine_core import EngineCore, run_to_end
from .lifecycle import ForwardError
from .sampling_params import SamplingParams
from .scheduler import Request, SampledToken

SHUTDOWN_TIMEOUT_S = 10.0


class EngineCoreError(RuntimeError):
    """A call failed in the core with an error that has no type of its own here."""


class EngineDeadError(RuntimeError):
    """The core's process ended without answering."""


ERROR_TYPES: dict[str, type[Exception]] = {
    cls.__name__: cls
    for cls in (
        *(ConfigError, UnsupportedSettingError, OutOfDeviceMemoryError, EngineCoreError),
        *(ForwardError, ValueError, TypeError, NotImplementedError, FileNotFoundError),
    )
}
"""Errors that cross the pipe with their type."""


class CoreProcessClient:
    """Starts the core, and speaks with it.

    Raises:
        EngineDeadError: the core ended while starting.
        Exception: what the core's own start raised, with its type where `ERROR_TYPES` has it.
    """

    def __init__(self, config: EngineConfig) -> None:
        spawn = multiprocessing.get_context("spawn")
        context = multiprocessing.get_context("fork") if can_fork(config) else spawn
        self.connection, child = context.Pipe()
        self.process = context.Process(
            target=serve,
            args=(child, self.connection, to_json(config)),
            name="EngineCore",
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of any second thread; numpy's own one is safe to leave behind.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        child.close()
        try:
            self._receive("start")
        except BaseException:
            self._end()
            raise

    def generate(self, requests: Sequence[Request]) -> list[Request]:
        """Run requests to their end."""
        answer = self._call("generate", [asdict(request) for request in requests])
        return [request_from_json(item) for item in answer]

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker by name; arguments and results are JSON data."""
        results: list[Any] = self._call("collective_rpc", method, list(args), dict(kwargs or {}))
        return results

    def shutdown(self) -> dict[str, Any] | None:
        """End the core: it frees everything, says what is left, then exits."""
        left: dict[str, Any] | None = None
        if self.process.is_alive():
            left = self._call("shutdown")
        self._end()
        return left

    def _call(self, name: str, *args: Any) -> Any:
        message = to_json({"call": name, "args": args})
        try:
            self.connection.send_bytes(message)
        except OSError as error:
            raise self._dead(name) from error
        return self._receive(name)

    def _receive(self, call: str) -> Any:
        wait([self.connection, self.process.sentinel])
        try:
            if not self.connection.poll():
                raise EOFError
            answer = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._dead(call) from error
        if "error" in answer:
            cls = ERROR_TYPES.get(answer["error"])
            text = answer["message"] if cls else f"{answer['error']}: {answer['message']}"
            failure = (cls or EngineCoreError)(text)
            failure.add_note(f"in the engine core, process {self.process.pid}:\n{answer['trace']}")
            raise failure
        return answer["result"]

    def _dead(self, call: str) -> EngineDeadError:
        self.process.join(SHUTDOWN_TIMEOUT_S)
        code = self.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return EngineDeadError(
            f"the engine core (process {self.process.pid}) ended with {how} during {call!r}"
        )

    def _end(self) -> None:
        self.connection.close()
        self.process.join(SHUTDOWN_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def can_fork(config: EngineConfig) -> bool:
    """Forking is quick; CUDA and OpenMP's pool of threads do not survive it."""
    has_pool = torch.get_num_threads() > 1 or (config.num_threads or 1) > 1
    return config.device == "simulated" and hasattr(os, "fork") and not has_pool


def serve(connection: Connection, parents_end: Connection, config: bytes) -> None:
    """Main of the core's process: build the core, then answer calls until told to stop.

    Args:
        connection: this process's end of the pipe.
        parents_end: the other end, inherited and closed so that a dying parent is seen.
        config: the engine's configuration as JSON.
    """
    parents_end.close()
    core: EngineCore | None = None

    def start(_: str) -> None:
        nonlocal core
        core = EngineCore(config_from_json(config))

    if not answer(connection, start, "") or core is None:
        return
    try:
        while True:
            message = json.loads(connection.recv_bytes())
            answer(connection, lambda call: dispatch(core, call), message)
            if message["call"] == "shutdown":
                return
    except (EOFError, KeyboardInterrupt):
        return


def answer(connection: Connection, call: Any, argument: Any) -> bool:
    """Send what `call(argument)` returns, or how it failed; True if it did not fail."""
    try:
        text = to_json({"result": call(argument)})
    except Exception as error:  # the caller's to judge
        trace = traceback.format_exc()
        message = {"error": type(error).__name__, "message": str(error), "trace": trace}
        connection.send_bytes(to_json(message))
        return False
    connection.send_bytes(text)
    return True


def dispatch(core: EngineCore, message: Mapping[str, Any]) -> Any:
    """Do what a message asks for, and return JSON data."""
    args = message["args"]
    if message["call"] == "generate":
        ended = run_to_end(core, [request_from_json(item) for item in args[0]])
        return [asdict(request) for request in ended]
    if message["call"] == "collective_rpc":
        return core.model_executor.collective_rpc(*args)
    assert message["call"] == "shutdown", message
    return core.shutdown()


def to_json(value: Any) -> bytes:
    """JSON bytes of plain data and of the engine's own dataclasses.

    Raises:
        TypeError: something has no JSON form.
    """
    return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, EngineConfig):
        return asdict(value)
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")


def config_from_json(text: bytes) -> EngineConfig:
    """The configuration that `to_json` wrote."""
    data = json.loads(text)
    offload = data.pop("offload")
    for name in ("cpu_offload_params", "offload_params"):
        offload[name] = frozenset(offload[name])
    return EngineConfig(**data, offload=OffloadConfig(**offload))


def request_from_json(data: Mapping[str, Any]) -> Request:
    """The request that `asdict` wrote."""
    fields = {
        **data,
        "sampling_params": SamplingParams(**data["sampling_params"]),
        "block_ids": tuple(data["block_ids"]),
        "output": [SampledToken(**token) for token in data["output"]],
    }
    return Request(**fields)
