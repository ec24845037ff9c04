"""vLLM in process, or with an engine core of its own; behind its server in server.py."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import vllm
import vllm.plugins
from vllm.platforms import current_platform

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
from harness.engines.base import EngineModules, EngineOutOfMemory, EngineRefused

from .answers import first_reason, to_output
from .args import engine_kwargs, process_env
from .modules import VllmModules
from .server_output import CONFIGURING, REFUSALS
from .steps import STEPS, refuse_behind_server, take_step

PLATFORM = current_platform.device_type
"""Kind of device, asked as soon as vLLM is imported: a fork of this process may not ask again."""
LOADED = (vllm.LLM, vllm.EngineArgs, vllm.SamplingParams)
"""Imported when first asked for, seconds long: by a warm parent once, instead of by each child."""
STREAMED = ("ordering", "delay-copy", "delay-compute")
"""Instruments that need streams."""


class VllmEngine:
    """Runs `vllm.LLM`; its workers are reached through `collective_rpc` only."""

    supports = frozenset({"generate", *STEPS})
    enters_itself = True
    rank_probes: tuple[ProbeSnapshot, ...] = ()

    def __init__(self) -> None:
        self.modules: EngineModules = VllmModules()
        self.door: Any = None

    def start(self, setting: Setting, workload: Workload, *, num_threads: int) -> None:
        """See `Engine.start`."""
        self.workload = workload
        if setting.server:
            refuse_behind_server(workload)
        is_cpu = PLATFORM == "cpu"
        if is_cpu and (asked := [name for name in setting.instruments if name in STREAMED]):
            raise EngineRefused(
                f"instruments={asked[0]!r} needs streams: this vLLM runs on a CPU, where copies "
                "are made at once"
            )
        os.environ.update(process_env(setting, is_cpu=is_cpu))
        kwargs = engine_kwargs(setting, workload, is_cpu=is_cpu)
        if not is_cpu and any(step.kind == "sleep" for step in workload.steps):
            kwargs.setdefault("enable_sleep_mode", True)
        # vLLM enters its plugins once in a process; each of several engines has its own setting.
        vllm.plugins.plugins_loaded = False
        if setting.server:
            from .server import ServerDoor

            self.door = ServerDoor(kwargs, num_threads=num_threads)
        else:
            torch.set_num_threads(num_threads)
            self.door = LLMDoor(kwargs)
        self.rpc("harness_loaded")

    def generate(self, step_idx: int) -> tuple[RequestOutput, ...]:
        """See `Engine.generate`."""
        answers: tuple[RequestOutput, ...] = self.door.generate(self.workload)
        return tuple(replace(answer, step_idx=step_idx) for answer in answers)

    def rpc(self, method: str, *args: Json) -> Json:
        """See `Engine.rpc`; rank 0 answers."""
        return self.door.rpc(method, args)[0]

    def probe(self) -> ProbeSnapshot:
        """See `Engine.probe`; every rank is asked."""
        found = [decode(ProbeSnapshot, each) for each in self.door.rpc("harness_probe", ())]
        first, *others = (
            replace(snapshot, rank=rank, is_core_process=self.door.has_own_core)
            for rank, snapshot in enumerate(found)
        )
        self.rank_probes = tuple(others)
        return first

    def do(self, step: Step) -> None:
        """See `Engine.do`."""
        take_step(self.door, step)

    def leftover(self) -> MemoryTrace | None:
        """See `Engine.leftover`."""
        return None

    def shutdown(self) -> None:
        """See `Engine.shutdown`."""
        if self.door is not None:
            self.door.shutdown()
            self.door = None


class EmulatedVllmEngine(VllmEngine):
    """The same with vLLM's offloaders on CPU tensors; the plugin installs the emulation."""


class LLMDoor:
    """`vllm.LLM` in this process; where its core runs is the environment's word.

    Raises:
        EngineRefused: vLLM's configuration will not have the arguments.
        EngineOutOfMemory: the device's memory does not suffice.
    """

    def __init__(self, kwargs: dict[str, Json]) -> None:
        try:
            vllm.EngineArgs(**kwargs)
        except REFUSALS as error:
            raise EngineRefused(first_reason(error)) from error
        try:
            self.llm = vllm.LLM(**kwargs)
        except REFUSALS as error:
            frames = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
            if frames.isdisjoint(CONFIGURING):
                raise
            raise EngineRefused(first_reason(error)) from error
        except torch.OutOfMemoryError as error:
            raise EngineOutOfMemory(str(error)) from error

    @property
    def has_own_core(self) -> bool:
        """Whether the engine core is in a process of its own, by the live client of it.

        The workers' processes say nothing of that: several ranks are always apart.
        """
        return not hasattr(self.llm.llm_engine.engine_core, "engine_core")

    def generate(self, workload: Workload) -> tuple[RequestOutput, ...]:
        """Answers in the order of the prompts."""
        asked = workload.sampling_params
        params = vllm.SamplingParams(
            temperature=asked.temperature,
            top_p=asked.top_p,
            max_tokens=asked.max_tokens,
            ignore_eos=asked.ignore_eos,
            logprobs=asked.logprobs,
            seed=asked.seed,
            detokenize=False,
        )
        prompts: Any = [{"prompt_token_ids": list(ids)} for ids in workload.prompt_token_ids]
        try:
            answers = self.llm.generate(prompts, params, use_tqdm=False)
        except torch.OutOfMemoryError as error:
            raise EngineOutOfMemory(str(error)) from error
        return tuple(to_output(answer) for answer in answers)

    def rpc(self, method: str, args: Sequence[Json]) -> list[Json]:
        """Every rank's answer."""
        answers: list[Json] = self.llm.collective_rpc(method, args=tuple(args))
        return answers

    def sleep(self, level: int) -> None:
        """Put weights away."""
        self.llm.sleep(level=level)

    def wake_up(self, tags: list[str] | None) -> None:
        """Bring them back; None brings all."""
        self.llm.wake_up(tags)

    def forget_prefixes(self) -> None:
        """Drop cached keys and values, which were computed with the weights before."""
        self.llm.reset_prefix_cache()

    def shutdown(self) -> None:
        """End the core and what it holds."""
        core = getattr(self.llm.llm_engine, "engine_core", None)
        if core is not None:
            core.shutdown()
        del self.llm
