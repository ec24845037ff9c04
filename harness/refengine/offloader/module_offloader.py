"""One prefetched module: its host copies, its slot, and the copies between them.

The two waits that keep a copy and its readers apart are methods of their own, so that a fault can
take away exactly one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import nn

from harness.refengine.device import Device, Space, Stream

from .buffer_pool import ParamInfo, StaticBufferPool


class ModuleOffloader:
    """Keeps the parameters of one module in host memory, and copies them into its slot.

    It does not keep the module alive: the module's own forward keeps this.

    Args:
        module: The module.
        param_names: Which of its parameters are offloaded, relative to it.
        index: Its place among the offloaded modules.
        module_index: Its place in the whole stack.
        space: Where host copies go: `pinned` or `host`.
        device: The device.
        copy_stream: Where copies are queued.
    """

    def __init__(
        self,
        module: nn.Module,
        param_names: tuple[str, ...],
        *,
        index: int,
        module_index: int,
        space: Space,
        device: Device,
        copy_stream: Stream,
    ) -> None:
        self._module_ref = weakref.ref(module)
        self.index = index
        self.module_index = module_index
        self.device = device
        self.copy_stream = copy_stream
        self.space = space
        self.slot_idx: int | None = None
        self.host_copies: dict[str, torch.Tensor] = {}
        """Parameter name -> host copy, the bytes of record."""
        self.buffers: dict[str, torch.Tensor] = {}
        """Parameter name -> its buffer in the slot, shared with other modules."""
        self._copy_done_event = device.new_event(f"copy_done_{index}")
        self._is_copy_recorded = False
        for name in param_names:
            param = module.get_parameter(name)
            self.host_copies[name] = device.to(param.data, space)
            param.data = self.host_copies[name]

    @property
    def module(self) -> nn.Module:
        """The module.

        Raises:
            RuntimeError: It is gone.
        """
        module = self._module_ref()
        if module is None:
            raise RuntimeError(f"module {self.module_index} of the stack was dropped")
        return module

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of its host copies."""
        return sum(copy.nbytes for copy in self.host_copies.values())

    @property
    def param_infos(self) -> list[ParamInfo]:
        """What buffers it needs."""
        return [ParamInfo.from_tensor(name, copy) for name, copy in self.host_copies.items()]

    def masters(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Each offloaded parameter and its host copy."""
        for name, host_copy in self.host_copies.items():
            yield self.module.get_parameter(name), host_copy

    def sync_host_copies(self) -> None:
        """Take over what loading left in the parameters, should it have replaced their storage."""
        for name, host_copy in self.host_copies.items():
            loaded = self.module.get_parameter(name).data
            if loaded.data_ptr() != host_copy.data_ptr() or ParamInfo.from_tensor(
                name, loaded
            ) != ParamInfo.from_tensor(name, host_copy):
                self.host_copies[name] = self.device.to(loaded, self.space)

    def replace(self, host_copy: torch.Tensor, param: nn.Parameter | None) -> None:
        """Keep a host copy of `param` instead, if the one given is of this module."""
        for name in [n for n, copy in self.host_copies.items() if copy is host_copy]:
            if param is None:
                del self.host_copies[name]
            else:
                param.data = self.host_copies[name] = self.device.to(param.data, self.space)

    def assign_slot(self, slot_idx: int, pool: StaticBufferPool) -> None:
        """Point the module's parameters at the buffers of a slot."""
        self.slot_idx = slot_idx
        for info in self.param_infos:
            buffer = pool.get_buffer(info, slot_idx)
            self.buffers[info.name] = buffer
            self.module.get_parameter(info.name).data = buffer

    def start_onload(self) -> None:
        """Queue the copies of all parameters into the slot, after the slot's last reader."""
        self._wait_for_reader()
        with self.device.stream(self.copy_stream):
            for name, host_copy in self.host_copies.items():
                self.device.copy_async(
                    self.buffers[name], host_copy, site=f"prefetch.{self.module_index}.{name}"
                )
            self.copy_stream.record_event(self._copy_done_event)
        self._is_copy_recorded = True

    def wait_for_onload(self) -> None:
        """Make later work of the current stream see the copied weights."""
        self._wait_for_copy()

    def forget_copy_event(self) -> None:
        """Compute waited for the copy by other means; its event is of another capture."""
        self._is_copy_recorded = False

    def drop(self) -> None:
        """Forget copies and buffers; the parameters, if there still, are left empty."""
        if (module := self._module_ref()) is not None:
            for name in self.host_copies:
                param = module.get_parameter(name)
                param.data = torch.empty(0, dtype=param.dtype)
        self.host_copies.clear()
        self.buffers.clear()

    def _wait_for_copy(self) -> None:
        """Compute waits for this module's copy; without it a layer reads what was there before.

        A capture's first readers need no wait: those copies came ahead of the graph.
        """
        stream = self.device.current_stream()
        if self._is_copy_recorded:
            stream.wait_event(self._copy_done_event)
        elif self.device.capturing is None:
            stream.wait_stream(self.copy_stream)

    def _wait_for_reader(self) -> None:
        """The copy waits for compute so far; without it a refill overtakes the slot's reader."""
        self.copy_stream.wait_stream(self.device.current_stream())
