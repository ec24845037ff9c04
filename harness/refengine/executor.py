"""Drives the workers of an engine, one for each pipeline stage, all in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .config import EngineConfig, check
from .lifecycle import tags_to_wake
from .scheduler import SampledToken, SchedulerOutput

if TYPE_CHECKING:
    from .engine_core import Worker, WorkerWrapper


class UniProcExecutor:
    """Drives a worker for each pipeline stage: `driver_worker` is the first, `workers` the others.

    A worker is made and loaded before the next one: the process's offloader is its own meanwhile.

    Args:
        config: the engine's configuration.
        make: makes the worker of a rank.
    """

    driver_worker: WorkerWrapper

    def __init__(
        self, config: EngineConfig, make: Callable[[EngineConfig, int], WorkerWrapper]
    ) -> None:
        self._make = make
        self.workers: list[WorkerWrapper] = []
        self._stages: list[Worker] = []
        try:
            self.num_blocks = min(
                self._add_worker(config, rank) for rank in range(config.pipeline_parallel_size)
            )
            for worker in self._stages:
                worker.model_runner.initialize_kv_cache(self.num_blocks)
            for step in self._stages[0].model_runner.warm_up_steps():
                self.execute_model(step)
        except BaseException:
            self.shutdown()
            raise

    def _add_worker(self, config: EngineConfig, rank: int) -> int:
        wrapper = self._make(config, rank)
        if rank == 0:
            self.driver_worker = wrapper
        else:
            self.workers.append(wrapper)
        self._stages.append(wrapper.worker)
        return wrapper.worker.load_model()

    def execute_model(self, step: SchedulerOutput) -> Mapping[str, SampledToken]:
        """Run one step through every stage; the last one's tokens go back to the others."""
        result: Mapping[str, SampledToken] | torch.Tensor = {}
        for worker in self._stages:
            hidden = result if isinstance(result, torch.Tensor) else None
            result = worker.execute_model(step, hidden)
        assert not isinstance(result, torch.Tensor), "the last stage samples"
        for worker in self._stages[:-1]:
            worker.model_runner.take_sampled(result)
        return result

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker by name; see `wake_up` for the one that is not every's.

        Raises:
            ConfigError: the worker has no such method.
        """
        if method == "wake_up":
            return self.wake_up(*args, **(kwargs or {}))
        calls = [getattr(worker, method, None) for worker in self._stages]
        name = type(self._stages[0]).__name__
        check(all(map(callable, calls)), f"method={method!r} is not a method of {name}")
        return [call(*args, **(kwargs or {})) for call in calls if call is not None]

    def wake_up(self, tags: Sequence[str] | None = None) -> list[None]:
        """Wake in each worker what of `tags` is asleep there; None for all.

        After a later worker's device had no room, the earlier ones are awake; another call wakes
        the rest.

        Raises:
            ConfigError: a tag is unknown, or asleep in no worker.
            OutOfDeviceMemoryError: others took the room; what did not fit stays asleep.
        """
        asleep = {tag for worker in self._stages for tag in worker.sleeper.asleep}
        wanted = tags_to_wake(asleep, tags)
        for worker in self._stages:
            if mine := [tag for tag in wanted if tag in worker.sleeper.asleep]:
                worker.wake_up(mine)
        return [None] * len(self._stages)

    def check_ready(self) -> None:
        """Refuse to compute while a worker is asleep."""
        for worker in self._stages:
            worker.check_ready()

    def recover(self) -> None:
        """Let the workers forget a step that broke off."""
        for worker in self._stages:
            worker.recover()

    def shutdown(self) -> dict[str, Any]:
        """Shut the workers down; return their devices' account of what is still held, summed."""
        for worker in self._stages:
            worker.shutdown()
        return sum_stats([worker.memory_stats() for worker in self._stages])


def sum_stats(stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One account of several devices' memory; a figure that one of them lacks is None."""
    total: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in stats for name in each):
        found = [each[name] for each in stats if name in each]
        if isinstance(found[0], Mapping):
            total[name] = sum_stats(found)
        else:
            total[name] = None if None in found else sum(found)
    return total
