"""UVA offload: parameters stay in host memory, and the device reads them there.

Where a view of host memory is not possible or not wanted, each forward copies them first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from harness.refengine import envs
from harness.refengine.device import get_current_device

from .base import BaseOffloader, is_selected, should_pin_memory
from .buffer_pool import ParamInfo, StaticBufferPool
from .forward import Forward, replace_forward


class UVAOffloader(BaseOffloader):
    """Offloads parameters in the order of the stack until a budget is reached.

    A view needs pinned memory on real hardware. Asked for a view of unpinned memory there, this
    offloader copies on forward instead, so that the request not to pin is kept.

    Args:
        cpu_offload_max_bytes: Budget; the last parameter may overshoot it.
        cpu_offload_params: Selectors, whole dot-segments; empty takes every parameter.
    """

    supports_tower_offload = True

    def __init__(
        self, cpu_offload_max_bytes: int, cpu_offload_params: frozenset[str] = frozenset()
    ) -> None:
        self.device = get_current_device()
        self.cpu_offload_max_bytes = cpu_offload_max_bytes
        self.cpu_offload_params = cpu_offload_params
        self.cpu_offload_bytes = 0
        self.pin_memory = should_pin_memory()
        self.uva_offloading = (
            self.device.uva_available
            and not envs.VLLM_WEIGHT_OFFLOADING_DISABLE_UVA
            and (self.pin_memory or not self.device.uva_needs_pinned)
        )
        self.host_copies: dict[str, torch.Tensor] = {}
        """`{module index}.{parameter name}` -> host copy; a tower's index is its name."""
        self.graph_weights: StaticBufferPool | None = None
        """What captured forwards copy weights into: one module's, filled again by the next."""
        self._names: dict[str, list[str]] = {}
        """Module index -> names of its offloaded parameters."""
        self._params: list[nn.Parameter] = []
        self._restores: list[Callable[[], None]] = []

    def wrap_modules(
        self, modules_generator: Iterable[nn.Module], prefix: str = ""
    ) -> list[nn.Module]:
        """Offload each module as it is made, before the next one takes device memory."""
        modules = []
        for module_index, module in enumerate(modules_generator):
            self._offload_module(prefix or str(module_index), module, prefix)
            modules.append(module)
        return modules

    def reserve_for_graphs(self) -> None:
        """Allocate the temporaries of a captured copy on forward."""
        if self.uva_offloading:
            return
        infos = [
            ParamInfo.from_tensor(key.partition(".")[2], copy)
            for key, copy in self.host_copies.items()
            if key.partition(".")[0].isdigit()
        ]
        self.graph_weights = StaticBufferPool(infos, 1, self.device, kind="graph_weights")

    def masters(self) -> dict[nn.Parameter, torch.Tensor]:
        """Return the host copy of each offloaded parameter, which its own bytes are or show."""
        return {param: param._vllm_offloaded_cpu_data for param in self._params}  # type: ignore[attr-defined]

    def replace(self, host_copy: torch.Tensor, param: nn.Parameter | None) -> None:
        """Offload `param` in the place of another; None: it was deleted."""
        key = next(key for key, copy in self.host_copies.items() if copy is host_copy)
        self._params = [p for p in self._params if p._vllm_offloaded_cpu_data is not host_copy]  # type: ignore[attr-defined]
        self.cpu_offload_bytes -= host_copy.nbytes
        if param is not None:
            self.host_copies[key] = self._offload_param(param)
            return
        del self.host_copies[key]
        index, _, name = key.partition(".")
        self._names[index].remove(name)

    def shutdown(self) -> None:
        """Drop hooks and host copies; offloaded parameters are left empty."""
        self.device.synchronize()
        for restore in self._restores:
            restore()
        for param in self._params:
            param.data = torch.empty(0, dtype=param.dtype)
            del param._vllm_offloaded_cpu_data  # type: ignore[attr-defined]
        self._restores.clear()
        self._params.clear()
        self.host_copies.clear()
        self.graph_weights = None

    def _offload_module(self, module_index: str, module: nn.Module, prefix: str) -> None:
        names = self._names[module_index] = []
        for name, param in module.named_parameters():
            if self.cpu_offload_bytes >= self.cpu_offload_max_bytes:
                break
            if is_selected(f"{prefix}.{name}", self.cpu_offload_params):
                self.host_copies[f"{module_index}.{name}"] = self._offload_param(param)
                names.append(name)
        if names and not self.uva_offloading:
            self._restores.append(
                replace_forward(module, lambda original: self._copying(module, names, original))
            )

    def _offload_param(self, param: nn.Parameter) -> torch.Tensor:
        host_copy = self.device.to(param.data, "pinned" if self.pin_memory else "host")
        param._vllm_offloaded_cpu_data = host_copy  # type: ignore[attr-defined]
        if self.uva_offloading:
            param.data = self.device.uva_view(host_copy)
            param._vllm_is_uva_offloaded = True  # type: ignore[attr-defined]
        else:
            param.data = host_copy
        self.cpu_offload_bytes += host_copy.nbytes
        self._params.append(param)
        return host_copy

    def _temporary(self, name: str, source: torch.Tensor) -> torch.Tensor:
        """Device memory for a copy: a graph's own inside a capture, else new."""
        if self.device.capturing is not None and self.graph_weights is not None:
            return self.graph_weights.get_buffer(ParamInfo.from_tensor(name, source), 0)
        return self.device.empty(source.shape, source.dtype, kind="state", stride=source.stride())

    def _fill(self, temporary: torch.Tensor, source: torch.Tensor, site: str) -> None:
        self.device.copy_async(temporary, source, site=site)

    def _copying(self, module: nn.Module, names: list[str], original: Forward) -> Forward:
        """Make a forward that computes with fresh device copies of the named parameters."""
        module_ref = weakref.ref(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            living = module_ref()
            assert living is not None, "its forward was called"
            copies = {}
            for name in names:
                source = living.get_parameter(name).data
                fresh = self._temporary(name, source)
                self._fill(fresh, source, f"uva_onload.{name}")
                copies[f"module.{name}"] = fresh
            call = _Call(living, original)
            return torch.func.functional_call(call, copies, args, kwargs, tie_weights=False)

        return forward


class _Call(nn.Module):
    """Calls a module's own forward, so that its forward hooks do not run a second time."""

    def __init__(self, module: nn.Module, original: Forward) -> None:
        super().__init__()
        self.module = module
        self.original = original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)
