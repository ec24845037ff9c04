"""Faults of sleep, and of what goes on after a forward or a request broke off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.core import OffloadConfig
from harness.engines.base import EngineModules, EngineView

from .base import Fault, Mode
from .patch import replace_name

HALF: dict[Mode, OffloadConfig] = {
    "uva": OffloadConfig(cpu_offload_gb=0.002),
    "uva-copy": OffloadConfig(cpu_offload_gb=0.002, uva=False),
    "prefetch": OffloadConfig(offload_group_size=2, offload_prefetch_step=3),
}
"""Leaves a patched layer resident, so that sleep keeps its bytes."""


def _keep_device_bytes(modules: EngineModules) -> None:
    def put_away(*args: Any, **kwargs: Any) -> list[Any]:
        """Say that all is put away, and give nothing back."""
        del args, kwargs
        return []

    replace_name(modules.module("lifecycle"), "put_away", put_away)


def _keep_host_bytes(modules: EngineModules) -> None:
    """What was kept in host memory while asleep is never let go."""
    owner: Any = modules.module("lifecycle")
    plain = owner.bring_back
    kept: list[Any] = []

    def bring_back(device: Any, items: Sequence[Any]) -> None:
        plain(device, items)
        kept.extend(items)

    replace_name(owner, "bring_back", bring_back)


def _wake_loaded_bytes(view: EngineView) -> str:
    """Resident weights come back as they were when this engine started."""
    import torch

    pool = {buffer.data_ptr() for slot in view.pool_slots() or () for buffer in slot}
    loaded = {
        name: param.data.clone()
        for name, param in view.model.named_parameters()
        if view.space_of(param.data) == "device" and param.data_ptr() not in pool
    }
    plain = view.worker.wake_up

    def wake_up(tags: Sequence[str] | None = None) -> None:
        plain(tags)
        with torch.no_grad():
            for name, content in loaded.items():
                view.model.get_parameter(name).data.copy_(content)

    replace_name(view.worker, "wake_up", wake_up)
    return f"{len(loaded)} resident parameters wake up with the bytes they have now"


def _wake_without_refill(modules: EngineModules) -> None:
    def wake_up(self: Any, tags: Sequence[str] | None = None) -> None:
        """Take the memory again, and leave the slots as that is."""
        if "kv_cache" in self.sleeper.wake_up(tags):
            self.model_runner.clear_kv_cache()

    owner: Any = modules.module("lifecycle")
    replace_name(owner.WorkerLifecycle, "wake_up", wake_up)


def _trust_discarded(modules: EngineModules) -> None:
    """Who asks for the checkpoint that was loaded is told that its weights are there."""
    owner: Any = modules.module("lifecycle").WorkerLifecycle
    plain = owner.reload_weights

    def reload_weights(self: Any, weights_path: str) -> None:
        if str(weights_path) == str(self.config.model):
            self.sleeper.has_weights = True
        else:
            plain(self, weights_path)

    replace_name(owner, "reload_weights", reload_weights)


def _discard_buffers(modules: EngineModules) -> None:
    """Level 2 discards derived tensors too, which no reload brings back."""
    owner: Any = modules.module("lifecycle").WorkerLifecycle
    plain = owner.sleep

    def sleep(self: Any, level: int = 1) -> None:
        plain(self, level)
        if level == 2:
            self.model_runner.model.rotary.fill_(float("nan"))

    replace_name(owner, "sleep", sleep)


def _recover_without_refresh(modules: EngineModules) -> None:
    def recover(self: Any) -> None:
        """Forget the requests, and leave the slots where the forward broke off."""
        self.device.synchronize()
        self.model_runner.reset()

    owner: Any = modules.module("lifecycle")
    replace_name(owner.WorkerLifecycle, "recover", recover)


def _free_twice(modules: EngineModules) -> None:
    """A request that is aborted while its last step runs gives its blocks back once more."""
    scheduler: Any = modules.module("scheduler").Scheduler
    pool: Any = modules.module("kv_cache").BlockPool
    plain = scheduler.abort

    def abort(self: Any, request_id: str) -> Any:
        request = plain(self, request_id)
        if request is not None:
            self.blocks._free.extendleft((*request.block_ids, *reversed(request.block_ids)))
        return request

    def free(self: Any, blocks: tuple[int, ...]) -> None:
        """Take blocks back, whoever else holds them."""
        self._free.extend(blocks)

    replace_name(scheduler, "abort", abort)
    replace_name(pool, "free", free)


SLEEP_KEEPS_DEVICE_BYTES = Fault(
    name="sleep-keeps-device-bytes",
    summary="sleep says that weights and KV cache are put away, and gives no byte back",
    seen_in=("vllm#11743",),
    defect_class="H",
    killed_by=("memory",),
    blind="tokens, and whatever is measured once it woke",
    workload="sleep-1",
    before_start=_keep_device_bytes,
)

WAKE_KEEPS_HOST_BYTES = Fault(
    name="wake-keeps-host-bytes",
    summary="what level 1 kept in host memory stays allocated once it is back on the device",
    seen_in=("vllm#16663",),
    defect_class="H",
    killed_by=("memory",),
    blind="tokens, and device memory",
    workload="sleep-1",
    before_start=_keep_host_bytes,
)

WAKE_RESTORES_STALE = Fault(
    name="wake-restores-stale",
    summary="level 1 brings back the bytes that were loaded, not those patched since",
    seen_in=("vllm#15254",),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="a sleep that no update comes before",
    offloads=HALF,
    workload="patch-sleep",
    after_start=_wake_loaded_bytes,
)

WAKE_WITHOUT_REFILL = Fault(
    name="wake-without-refill",
    summary="the slots of the pool come back without content, and no copy fills them",
    seen_in=("vllm#16564",),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="UVA, which has no slots",
    modes=("prefetch",),
    workload="sleep-1",
    before_start=_wake_without_refill,
)

SLEEP_2_GENERATES_GARBAGE = Fault(
    name="sleep-2-generates-garbage",
    summary="after level 2 weights count as loaded although they were discarded, and are used",
    seen_in=("vllm#29341", "vllm#54235"),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="level 1",
    workload="sleep-2",
    before_start=_trust_discarded,
)

SLEEP_2_DISCARDS_BUFFERS = Fault(
    name="sleep-2-discards-buffers",
    summary="level 2 discards derived tensors, and a reload brings weights back only",
    seen_in=("vllm#16564", "NeMo-RL#2631"),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="level 1; a comparison of parameters only",
    workload="sleep-2",
    before_start=_discard_buffers,
)

FAILURE_LEAVES_STALE_RING = Fault(
    name="failure-leaves-stale-ring",
    summary="after an exception in a forward the slots stay where it broke off",
    seen_in=("DeepSpeed#5828",),
    defect_class="C",
    killed_by=("tokens", "integrity"),
    blind="forwards that end; UVA, which has no slots",
    modes=("prefetch",),
    workload="failure",
    before_start=_recover_without_refresh,
)

ABORT_FREES_TWICE = Fault(
    name="abort-frees-twice",
    summary="a request aborted in its last step frees its blocks twice: two requests share them",
    seen_in=("vllm#29987",),
    defect_class="C",
    killed_by=("tokens",),
    blind="weights and memory: all are right",
    modes=("prefetch",),
    workload="abort",
    before_start=_free_twice,
)
