"""vLLM behind its OpenAI server: started as a child, asked over HTTP on a socket of its own."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core import Json, Logprobs, RequestOutput, Workload
from harness.engines.base import EngineOutOfMemory, EngineRefused

from .server_flags import as_flags, server_options
from .server_output import read_failure
from .server_process import ServerProcess

MODULE = "vllm.entrypoints.openai.api_server"
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens the endpoints that the harness probes through."""
HEALTH_PERIOD_S = 0.2
END_AFTER_ERROR_S = 10.0
"""Seconds that a server whose core died gets to say why and to end."""
MAX_SOCKET_PATH = 100
TOKEN_PREFIX = "token_id:"
NO_CHANGE: dict[str, Json] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": 0,
    "min_p": 0.0,
}
"""Said outright: left out, the server takes them from the checkpoint's generation_config."""


class ServerDoor:
    """`vllm serve` in a child of this process; the same doors as `LLMDoor`, over HTTP.

    Args:
        kwargs: engine arguments by their keyword names.
        num_threads: compute threads of the child.

    Raises:
        EngineRefused: vLLM's configuration will not have the arguments.
        EngineOutOfMemory: the device's memory does not suffice.
        RuntimeError: the server ended before it answered.
    """

    has_own_core = True

    def __init__(self, kwargs: Mapping[str, Json], *, num_threads: int) -> None:
        options = server_options()
        flags = as_flags(kwargs, options)
        self._folder = tempfile.TemporaryDirectory(prefix="harness-server-")
        path = Path(self._folder.name) / "http"
        can_bind = options is not None and "--uds" in options
        if can_bind and len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            self._address: Path | int = path
            flags.append(f"--uds={path}")
        else:
            self._address = free_port()
            flags += ["--host=127.0.0.1", f"--port={self._address}"]
        threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = ServerProcess(
            [sys.executable, "-m", MODULE, *flags], {**os.environ, **threads, **DEV_MODE}
        )
        try:
            self._wait_until_healthy()
        except BaseException:
            self.shutdown()
            raise

    def generate(self, workload: Workload) -> tuple[RequestOutput, ...]:
        """Answers in the order of the prompts; all prompts are in one request, to batch alike."""
        answer = self._ask("POST", "/v1/completions", completion_request(workload))
        return read_completion(answer, workload)

    def rpc(self, method: str, args: Sequence[Json]) -> list[Json]:
        """Every rank's answer; the server makes a string of all but null, lists and objects."""
        answer = self._ask("POST", "/collective_rpc", {"method": method, "args": list(args)})
        results: list[Json] = answer["results"]
        return results

    def server_info(self) -> dict[str, Json]:
        """The configuration as the server itself tells it, a second source beside the probe."""
        info: dict[str, Json] = self._ask("GET", "/server_info?config_format=json")
        return info

    def shutdown(self) -> None:
        """End the server and whatever it started; a second call does nothing."""
        self.process.end()
        self._folder.cleanup()

    def _wait_until_healthy(self) -> None:
        while not self.process.wait(HEALTH_PERIOD_S):
            try:
                status, _ = exchange(self._address, "GET", "/health")
            except (OSError, http.client.HTTPException):
                continue  # it does not listen yet
            if status == http.client.OK:
                return
        self.process.end()
        raise self._failure("the server ended before it answered")

    def _ask(self, verb: str, path: str, body: Json = None) -> Any:
        try:
            status, text = exchange(self._address, verb, path, body)
        except (OSError, http.client.HTTPException) as error:
            self.process.wait(END_AFTER_ERROR_S)
            raise self._failure(f"{path}: {type(error).__name__}: {error}") from error
        if status == http.client.OK:
            return json.loads(text)
        reason = f"{path}: status {status}: {error_message(text)}"
        if status < http.client.INTERNAL_SERVER_ERROR or path == "/collective_rpc":
            raise RuntimeError(reason)
        self.process.wait(END_AFTER_ERROR_S)
        raise self._failure(reason)

    def _failure(self, fallback: str) -> Exception:
        """What the server's own last words say, as the exception that in process would raise."""
        failure = read_failure(self.process.output())
        if failure is None or self.process.is_killed:
            return RuntimeError(f"{fallback} ({self.process.describe_end()})")
        if failure.is_out_of_memory:
            return EngineOutOfMemory(failure.reason)
        if failure.is_refusal:
            return EngineRefused(failure.reason)
        return RuntimeError(f"{failure.kind}: {failure.reason}")


def completion_request(workload: Workload) -> dict[str, Json]:
    """Body for `/v1/completions`: tokens in, tokens out, no tokenizer needed."""
    asked = workload.sampling_params
    return {
        "prompt": [list(ids) for ids in workload.prompt_token_ids],
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "seed": asked.seed,
        "logprobs": asked.logprobs,
        "ignore_eos": asked.ignore_eos,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        **NO_CHANGE,
    }


def read_completion(answer: Mapping[str, Any], workload: Workload) -> tuple[RequestOutput, ...]:
    """The server's answer as the harness keeps it, in the order of the prompts.

    Raises:
        RuntimeError: an answer is missing, is for another prompt, or has no token ids.
    """
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    if [choice["index"] for choice in choices] != list(range(len(workload.prompt_token_ids))):
        count = len(workload.prompt_token_ids)
        raise RuntimeError(f"{count} prompts were sent, the server gave {len(choices)} answers")
    return tuple(
        _read_choice(f"{answer['id']}-{choice['index']}", choice, prompt)
        for choice, prompt in zip(choices, workload.prompt_token_ids, strict=True)
    )


def _read_choice(
    request_id: str, choice: Mapping[str, Any], prompt: Sequence[int]
) -> RequestOutput:
    table = choice.get("logprobs")
    named = None if table is None else tuple(_token_id(name) for name in table["tokens"])
    given = choice.get("token_ids")
    token_ids = named if given is None else tuple(given)
    if token_ids is None:
        raise RuntimeError(f"answer {choice['index']} has neither token_ids nor logprobs")
    if named is not None and named != token_ids:
        raise RuntimeError(
            f"answer {choice['index']} says token_ids={token_ids}, its logprobs are of {named}"
        )
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and tuple(echoed) != tuple(prompt):
        raise RuntimeError(f"answer {choice['index']} is for prompt_token_ids={echoed}")
    return RequestOutput(
        request_id=request_id,
        step_idx=0,
        prompt_token_ids=tuple(prompt),
        token_ids=token_ids,
        logprobs=None if table is None else _read_logprobs(table),
        finish_reason=choice["finish_reason"],
    )


def _read_logprobs(table: Mapping[str, Any]) -> Logprobs:
    best = [sorted(row.items(), key=lambda item: -item[1]) for row in table["top_logprobs"]]
    return Logprobs(
        chosen=tuple(float(value) for value in table["token_logprobs"]),
        top_token_ids=tuple(tuple(_token_id(name) for name, _ in row) for row in best),
        top=tuple(tuple(float(value) for _, value in row) for row in best),
    )


def _token_id(name: str) -> int:
    if not name.startswith(TOKEN_PREFIX):
        raise RuntimeError(f"token={name!r} in the server's logprobs must be {TOKEN_PREFIX}NUMBER")
    return int(name.removeprefix(TOKEN_PREFIX))


def error_message(text: str) -> str:
    """The one line of an error's body, whichever shape the endpoint gives it."""
    try:
        body = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:500]
    found = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or found
    return " ".join(str(found).split())[:500]


def exchange(address: Path | int, verb: str, path: str, body: Json = None) -> tuple[int, str]:
    """One request and its answer, on a connection of its own.

    Args:
        address: of a unix socket, or a port of this machine.
        verb: `GET` or `POST`.
        path: of the endpoint.
        body: sent as JSON; None sends nothing.

    Returns:
        Status and text of the answer.

    Raises:
        OSError: nobody listens, or the server went away.
    """
    connection = _Connection(address)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(verb, path, sent, {"Content-Type": "application/json"} if sent else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8")
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket, or to a port of this machine."""

    def __init__(self, address: Path | int) -> None:
        super().__init__("127.0.0.1", address if isinstance(address, int) else None)
        self._path = address if isinstance(address, Path) else None

    def connect(self) -> None:
        """Called by the base class when it needs its socket."""
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(os.fspath(self._path))


def free_port() -> int:
    """A port of this machine that the kernel chose, for servers that cannot take a socket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
