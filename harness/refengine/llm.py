"""The engine as its users see it: `LLM(model, **engine_args).generate(...)`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from .config import EngineConfig, check, check_known
from .engine_core import LLMEngine
from .sampling_params import SamplingParams
from .scheduler import Logprobs, Request

Prompt = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The answer to one prompt."""

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    finish_reason: str
    """`stop` (end of sequence or a stop token), `length` or `abort`."""
    logprobs: Logprobs | None = None
    text: str | None = None
    """Decoded answer, where the model has a tokenizer.json."""


class LLM:
    """An engine with one model.

    Args:
        model: checkpoint folder.
        engine_args: fields of `EngineConfig` and `OffloadConfig`, flat.

    Raises:
        ConfigError: an argument is unknown, out of range or impossible.
        OutOfDeviceMemoryError: the model does not fit the device.
    """

    def __init__(self, model: str | Path, **engine_args: Any) -> None:
        self.config = EngineConfig.from_args(str(model), **engine_args)
        self.llm_engine = LLMEngine(self.config)
        self._numbers = itertools.count()
        self._tokenizer: Any = None
        self._is_shut_down = False
        self.left_behind: dict[str, Any] | None = None
        """The device's account of its memory after `shutdown`; None before, or of a dead core."""

    @property
    def warnings(self) -> list[str]:
        """What was asked for and will not be done, one line each."""
        return self.config.warnings

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        *,
        abort_at_end: Collection[int] = (),
    ) -> list[RequestOutput]:
        """Answer every prompt; the answers come in the order of the prompts.

        Args:
            prompts: texts (needs tokenizer.json) or `{"prompt_token_ids": [...]}`.
            sampling_params: for all prompts, or one for each.
            prompt_token_ids: prompts as token ids, instead of `prompts`.
            abort_at_end: numbers of prompts that are aborted while their last step runs.

        Raises:
            ConfigError: a prompt is empty or too long, both kinds of prompt are given, or the
                engine is asleep.
            Exception: what a step raised; its requests are dropped, and the engine goes on.
        """
        assert not self._is_shut_down, "generate() after shutdown()"
        ids = self._prompt_ids(prompts, prompt_token_ids)
        params = sampling_params if sampling_params is not None else SamplingParams()
        if isinstance(params, SamplingParams):
            params = [params] * len(ids)
        check(len(params) == len(ids), f"{len(params)} sampling_params for {len(ids)} prompts")
        requests = [
            Request(
                request_id=str(next(self._numbers)),
                prompt_token_ids=self._checked(prompt),
                sampling_params=param,
                abort_at_end=number in abort_at_end,
            )
            for number, (prompt, param) in enumerate(zip(ids, params, strict=True))
        ]
        return [self._output(ended) for ended in self.llm_engine.engine_core.generate(requests)]

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker by name; the results, one a worker.

        Across processes, arguments and results must be JSON data.
        """
        return self.llm_engine.engine_core.collective_rpc(method, args, kwargs)

    def reload_weights(self, weights_path: str | Path) -> None:
        """Load every weight anew from a checkpoint folder of the same shapes.

        Raises:
            ConfigError: weights are asleep, or the checkpoint does not fit.
        """
        self.collective_rpc("reload_weights", [str(weights_path)])

    def sleep(self, level: int = 1) -> None:
        """Give device memory back: 1 keeps the weights in host memory, 2 keeps nothing.

        Raises:
            ConfigError: the level is neither, or something is asleep already.
        """
        self.collective_rpc("sleep", [level])

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again: `weights`, `kv_cache` or (None) all that is asleep.

        Raises:
            ConfigError: a tag is unknown, or awake.
            OutOfDeviceMemoryError: others took the room.
        """
        self.collective_rpc("wake_up", [None if tags is None else list(tags)])

    def shutdown(self) -> None:
        """Free everything; the engine cannot be used afterwards. Safe to call twice."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self.left_behind = self.llm_engine.engine_core.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _prompt_ids(
        self,
        prompts: Prompt | Sequence[Prompt] | None,
        prompt_token_ids: Sequence[Sequence[int]] | None,
    ) -> list[list[int]]:
        check(
            (prompts is None) != (prompt_token_ids is None),
            "give either prompts or prompt_token_ids",
        )
        if prompt_token_ids is not None:
            return [list(ids) for ids in prompt_token_ids]
        assert prompts is not None
        if isinstance(prompts, str | Mapping):
            prompts = [prompts]
        return [self._encode(prompt) for prompt in prompts]

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, Mapping):
            check_known(prompt, ("prompt_token_ids",), "key of a prompt")
            return list(prompt["prompt_token_ids"])
        tokenizer = self._load_tokenizer()
        check(tokenizer is not None, f"a text prompt needs {self.config.model}/tokenizer.json")
        return list(tokenizer.encode(prompt).ids)

    def _checked(self, prompt: list[int]) -> list[int]:
        vocab_size = int(self.config.hf_config["vocab_size"])
        bad = [token for token in prompt if not 0 <= token < vocab_size]
        check(not bad, f"token id {bad[:1]} of a prompt must be in 0..{vocab_size - 1}")
        return prompt

    def _load_tokenizer(self) -> Any:
        path = Path(self.config.model) / "tokenizer.json"
        if self._tokenizer is None and path.is_file():
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(path))
        return self._tokenizer

    def _output(self, request: Request) -> RequestOutput:
        token_ids = [token.token_id for token in request.output]
        tokenizer = self._load_tokenizer()
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=token_ids,
            finish_reason=request.finish_reason or "length",
            logprobs=request.logprobs,
            text=None if tokenizer is None else tokenizer.decode(token_ids),
        )
