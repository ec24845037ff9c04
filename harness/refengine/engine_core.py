"""From the engine's face down to the model runner, in vLLM's chain of attributes.

llm_engine.engine_core (client) .engine_core .model_executor .driver_worker .worker .model_runner
"""

from __future__ import annotations

import gc
import importlib
import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from . import envs
from .config import EngineConfig, check
from .device import Pending, drop_device, get_device, set_current_device
from .executor import UniProcExecutor
from .kv_cache import BlockPool, num_kv_blocks
from .lifecycle import Sleep, WorkerLifecycle
from .offloader import NoopOffloader, drop_offloader
from .runner import create_model_runner
from .runner.v2 import GPUModelRunner as V2GPUModelRunner
from .scheduler import Request, SampledToken, Scheduler, SchedulerOutput
from .stage import Stage

logger = logging.getLogger("harness.refengine")


class Worker(WorkerLifecycle):
    """One device and the model runner on it; an extension class may be mixed in.

    Args:
        config: the engine's configuration.
        rank: of its pipeline stage.
    """

    def __init__(self, config: EngineConfig, rank: int = 0) -> None:
        self.config = config
        self.rank = rank
        self.device = get_device(
            config.device,
            capacity_bytes=config.device_memory_bytes,
            schedule=config.schedule,
            seed=config.schedule_seed,
            unified_memory=config.unified_memory,
            pinned_granularity=config.pinned_granularity,
        )
        set_current_device(self.device)
        self.sleeper = Sleep(self.device)
        stage = Stage(rank=rank, num_stages=config.pipeline_parallel_size)
        self.model_runner = create_model_runner(config, self.device, stage)
        self.env = envs.read_envs()
        """Environment values this engine was made with, whatever other engines froze since."""

    def load_model(self) -> int:
        """Load; return the number of KV blocks that there is room for."""
        self.model_runner.load_model()
        shape = self.model_runner.model.held_shape
        return num_kv_blocks(self.config, shape, self.device)

    def execute_model(
        self, step: SchedulerOutput, hidden: torch.Tensor | None = None
    ) -> Mapping[str, SampledToken] | torch.Tensor:
        """Run one step on either runner.

        Args:
            step: what to compute.
            hidden: of the stage before; its copy is made on this stage's device.

        Returns:
            The sampled tokens by request id; before the last stage the hidden state.
        """
        runner, handed = self.model_runner, None
        if hidden is not None:
            copy = self.device.launch(torch.clone, hidden, site="pp_receive")
            handed = {"hidden_states": copy}
        result = runner.execute_model(step, handed)
        if isinstance(result, Pending):
            return result.result()
        if isinstance(runner, V2GPUModelRunner):
            return runner.sample_tokens().get_output()
        return result or {}

    def memory_stats(self) -> dict[str, Any]:
        """The device's own account of its memory, in bytes."""
        return self.device.memory_stats()

    def get_warnings(self) -> list[str]:
        """What the configuration asked for and will not be done."""
        return self.config.warnings

    def shutdown(self) -> None:
        """Give every byte back to the device."""
        self.device.synchronize()
        self.sleeper.forget()
        offloader = self.model_runner.offloader
        self.model_runner.shutdown()
        offloader.shutdown()
        drop_offloader(offloader)
        self.model_runner.offloader = NoopOffloader()
        del offloader
        drop_device(self.device)
        gc.collect()


class WorkerWrapper:
    """Makes the worker, with its extension mixed in."""

    def __init__(self, config: EngineConfig, rank: int) -> None:
        self.worker = worker_class(config.worker_extension_cls)(config, rank)


class EngineCore:
    """Scheduler and executor; a step is three calls."""

    def __init__(self, config: EngineConfig) -> None:
        envs.disable_envs_cache()  # what another engine froze is not this one's
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        for line in config.warnings:
            logger.warning(line)
        self.model_executor = UniProcExecutor(config, WorkerWrapper)
        blocks = BlockPool(self.model_executor.num_blocks, config.block_size)
        self.scheduler = Scheduler(config, blocks)
        envs.enable_envs_cache()

    def add_request(self, request: Request) -> None:
        """Queue a request; see `Scheduler.add` for refusals."""
        self.scheduler.add(request)

    def step(self) -> list[Request]:
        """Schedule, run, post-process; return the requests that ended."""
        step = self.scheduler.schedule()
        with torch.inference_mode():
            sampled = self.model_executor.execute_model(step)
        going = [r.request_id for r in self.scheduler.ending(step, sampled) if r.abort_at_end]
        aborted = [request for i in going if (request := self.scheduler.abort(i))]
        return aborted + self.scheduler.update(step, sampled)

    def recover(self, error: BaseException) -> None:
        """Drop every request after a step raised `error`; the next ones find all as it was.

        Frames of the step are cleared: who keeps the error must not keep device memory by it.
        """
        traceback.clear_frames(error.__traceback__)
        self.scheduler.drop_all()
        with torch.inference_mode():  # what is queued still is a step's
            self.model_executor.recover()

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return self.scheduler.has_work

    def shutdown(self) -> dict[str, Any]:
        """Free everything and return what is left; the environment is read anew afterwards."""
        left = self.model_executor.shutdown()
        envs.disable_envs_cache()
        return left


class EngineCoreClient(Protocol):
    """How the engine's face reaches the core, wherever that lives."""

    def generate(self, requests: Sequence[Request]) -> list[Request]:
        """Run requests to their end."""
        ...

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker by name."""
        ...

    def shutdown(self) -> dict[str, Any] | None:
        """End the core; return its device's account of what is left, if the core lived."""
        ...


class InprocClient:
    """The core in this process."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine_core = EngineCore(config)

    def generate(self, requests: Sequence[Request]) -> list[Request]:
        """Run requests to their end; refusals come before anything runs."""
        return run_to_end(self.engine_core, requests)

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker by name."""
        return self.engine_core.model_executor.collective_rpc(method, args, kwargs)

    def shutdown(self) -> dict[str, Any] | None:
        """Free everything and return what is left."""
        return self.engine_core.shutdown()


class LLMEngine:
    """The engine's face: a core, in this process or in its own."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.engine_core: EngineCoreClient
        envs.disable_envs_cache()  # what another engine froze is not this one's
        if envs.VLLM_ENABLE_V1_MULTIPROCESSING:
            from .core_process import CoreProcessClient

            self.engine_core = CoreProcessClient(config)
        else:
            self.engine_core = InprocClient(config)


def run_to_end(core: EngineCore, requests: Sequence[Request]) -> list[Request]:
    """Queue requests, step until all have ended, and return them in the order given.

    A step that raises ends them all.
    """
    core.model_executor.check_ready()
    for request in requests:
        core.scheduler.check_fits(request)
    for request in requests:
        core.add_request(request)
    ended: dict[str, Request] = {}
    try:
        while core.has_work:
            ended.update((request.request_id, request) for request in core.step())
    except BaseException as error:
        core.recover(error)
        raise
    return [ended[request.request_id] for request in requests]


def worker_class(extension: str) -> type[Worker]:
    """`Worker`, with the class `module.Class` mixed in if one is named.

    Raises:
        ConfigError: the name leads nowhere, or the class redefines something of the Worker.
    """
    if not extension:
        return Worker
    module, _, name = extension.rpartition(".")
    given = f"worker_extension_cls={extension!r}"
    check(bool(module), f"{given} must be module.Class")
    mixin = getattr(importlib.import_module(module), name, None)
    check(isinstance(mixin, type), f"{given}: {module} has no class {name}")
    assert isinstance(mixin, type)
    taken = [n for n in dir(mixin) if not n.startswith("__") and hasattr(Worker, n)]
    check(not taken, f"{given} redefines {', '.join(taken)} of the Worker: rename it")
    return type("Worker", (Worker, mixin), {})
