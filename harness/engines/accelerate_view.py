"""A live model under accelerate's hooks, seen from its worker; see `EngineView`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from harness.core import Json, MemoryTrace, Runner, Space

from .accelerate_hooks import (
    HeldTensor,
    OffloadingHook,
    TiedOnce,
    align_hooks,
    claim,
    held_tensors,
    offloading_hooks,
)
from .accelerate_reads import watch_modules
from .base import EngineModules, InternalMovedError, OffloadedModule
from .stack_view import decoder_layer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .accelerate import AccelerateWorker

CUDA_GRANULARITY_BYTES = 512
"""Rounding of torch's caching allocator."""
ENV_PREFIXES = ("ACCELERATE_", "HF_HUB_OFFLINE")


class NoopOffloader:
    """Stands where no hook offloads."""


class AccelerateModules:
    """Modules by role: `engine_core` is the adapter's own, others are accelerate's by path."""

    def module(self, role: str) -> ModuleType:
        """See `EngineModules.module`."""
        name = "harness.engines.accelerate" if role == "engine_core" else f"accelerate.{role}"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            raise InternalMovedError(name) from None


class AccelerateView:
    """Where things are inside a live worker; nothing is cached."""

    runner_version: Runner | None = None
    sees_compute = True
    is_asleep = False
    tensor_part = (0, 1)
    keeps_codes = False

    def __init__(self, worker: AccelerateWorker) -> None:
        self.worker = worker
        self.modules: EngineModules = AccelerateModules()

    @property
    def version(self) -> str:
        """See `EngineView`."""
        return str(importlib.import_module("accelerate").__version__)

    @property
    def runner(self) -> object:
        """See `EngineView`; the model runs itself."""
        return self.worker.model

    @property
    def offloader(self) -> object:
        """See `EngineView`; the first hook that offloads."""
        found = offloading_hooks(self.worker.model)
        return found[0].hook if found else NoopOffloader()

    @property
    def model(self) -> nn.Module:
        """See `EngineView`."""
        return cast("nn.Module", TiedOnce(self.worker.model, self.worker.ties))

    @property
    def effective_config(self) -> Mapping[str, Json]:
        """See `EngineView`; of hooks only where there are any."""
        model: Any = self.worker.model
        hooks = [hook for module in model.modules() for hook in align_hooks(module)]
        offloading = offloading_hooks(model)
        config: dict[str, Json] = {
            "model": self.worker.model_path,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": self._device_of(hooks).removesuffix(":0"),
            "enforce_eager": True,
            "loader": self.worker.loader,
            "attn_implementation": getattr(model.config, "_attn_implementation", None),
            "transformers": importlib.import_module("transformers").__version__,
            "num_hooks": len(hooks),
            "num_offloading_hooks": len(offloading),
            "device_map": getattr(model, "hf_device_map", None),
        }
        if offloading:
            blocks = sorted({type(h.module).__name__ for h in offloading if h.is_recursive})
            config["preload_module_classes"] = blocks
            config["offload_buffers"] = any(h.hook.offload_buffers for h in offloading)
        return config

    @property
    def env(self) -> Mapping[str, Json]:
        """See `EngineView`."""
        return {name: os.environ[name] for name in os.environ if name.startswith(ENV_PREFIXES)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `EngineView`."""
        return self.worker.warnings

    @property
    def observers(self) -> Sequence[object]:
        """See `EngineView`."""
        return self.worker.device.observers

    @property
    def device_name(self) -> str:
        """See `EngineView`."""
        return self.worker.device.name

    @property
    def not_observed(self) -> Sequence[str]:
        """See `EngineView`."""
        if self.device_name == "cuda":
            return ()
        return ("the peak of device memory between two looks: a CPU keeps no account of it",)

    @property
    def reported_offloaded_bytes(self) -> int:
        """See `EngineView`; what the hooks' maps hold, tied tensors once."""
        held = held_tensors(self.worker.model)
        names = {name: self.worker.ties.get(name, name) for name in held}
        apart = {f for tied, f in self.worker.ties.items() if (tied in held) != (f in held)}
        sizes = {names[name]: tensor.num_bytes for name, tensor in held.items()}
        return sum(size for name, size in sizes.items() if name not in apart)

    def memory(self) -> MemoryTrace:
        """See `EngineView`; on a CPU, the tensors that are not offloaded stand for the device."""
        import torch

        model = self.worker.model
        params, buffers = _storages(model.parameters()), _storages(model.buffers())
        held = [h.tensor for h in held_tensors(model).values() if h.space == "host"]
        pinned = [t for t in held if t is not None and self.is_pinned(t)]
        state = {at: size for at, size in buffers.items() if at not in params}
        device_bytes = sum(params.values()) + sum(state.values())
        self.worker.peak_bytes = peak = max(self.worker.peak_bytes, device_bytes)
        capacity, granularity = None, 1
        if self.device_name == "cuda":
            devices = range(torch.cuda.device_count())
            device_bytes = sum(map(torch.cuda.memory_allocated, devices))
            peak = sum(map(torch.cuda.max_memory_allocated, devices))
            capacity = sum(torch.cuda.get_device_properties(d).total_memory for d in devices)
            granularity = CUDA_GRANULARITY_BYTES
        return MemoryTrace(
            device_bytes=device_bytes,
            device_peak_bytes=peak,
            device_capacity_bytes=capacity,
            pinned_bytes=sum(_storages(pinned).values()),
            host_bytes=sum(_storages(held).values()) - sum(_storages(pinned).values()),
            granularity_bytes=granularity,
            by_kind={"weights": sum(params.values()), "state": sum(state.values())},
        )

    def space_of(self, tensor: torch.Tensor) -> Space:
        """See `EngineView`; of a parameter that computes where it is, or of what a hook holds."""
        if tensor.device.type == "meta":
            return "disk"
        address = tensor.untyped_storage().data_ptr()
        if address in _storages(self.worker.model.parameters()):
            return "device"
        return "host" if tensor.device.type == "cpu" else "device"

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """See `EngineView`."""
        return tensor.device.type == "cpu" and bool(tensor.is_pinned())

    def is_host_view(self, param: torch.Tensor) -> bool:
        """See `EngineView`; an offloaded parameter has no bytes of its own."""
        del param
        return False

    def host_copy(self, param: torch.Tensor) -> torch.Tensor | None:
        """See `EngineView`; of a tensor on disk only its size."""
        if param.device.type != "meta":
            return None
        return self.held(param).stand_in()

    def held(self, param: torch.Tensor) -> HeldTensor:
        """What the hook of an offloaded parameter holds.

        Raises:
            InternalMovedError: no hook holds it.
        """
        named = self.worker.model.named_parameters(remove_duplicate=False)
        names = [name for name, other in named if other is param]
        held = held_tensors(self.worker.model)
        found = next((held[name] for name in names if name in held), None)
        if found is None:
            raise InternalMovedError(f"hook behind {', '.join(names) or 'a parameter'}")
        return found

    def holder(self, name: str) -> OffloadingHook:
        """The hook that holds a parameter, for faults.

        Raises:
            InternalMovedError: there is none.
        """
        for found in offloading_hooks(self.worker.model):
            if name in found.names():
                return found
        raise InternalMovedError(f"hook behind {name}")

    def claim_copy(self, name: str) -> torch.Tensor:
        """The bytes behind an offloaded parameter, writable, for faults; see `claim`."""
        return claim(held_tensors(self.worker.model)[name], self.worker.folder)

    def offloaded_modules(self) -> Sequence[OffloadedModule]:
        """See `EngineView`."""
        return ()

    def pool_slots(self) -> Sequence[Sequence[torch.Tensor]] | None:
        """See `EngineView`."""
        return None

    def refills(self) -> Mapping[int, Sequence[int]]:
        """See `EngineView`."""
        return {}

    def layer_of(self, name: str) -> int | None:
        """See `EngineView`."""
        return decoder_layer(name)

    def watch_reads(self) -> None:
        """See `EngineView`."""
        if self.observers:
            watch_modules(self.worker.model, self.worker.ties, self.worker.device.observers)

    def synchronize(self) -> None:
        """See `EngineView`."""
        if self.device_name == "cuda":
            import torch

            torch.cuda.synchronize()

    def _device_of(self, hooks: Sequence[Any]) -> str:
        device = next((h.execution_device for h in hooks if h.execution_device is not None), None)
        if device is None:
            device = next(self.worker.model.parameters()).device
        return f"cuda:{device}" if isinstance(device, int) else str(device)


def _storages(tensors: Any) -> dict[int, int]:
    """Address -> bytes of the distinct storages of those tensors that have bytes."""
    found = [t.untyped_storage() for t in tensors if t.device.type != "meta"]
    return {storage.data_ptr(): storage.nbytes() for storage in found}
