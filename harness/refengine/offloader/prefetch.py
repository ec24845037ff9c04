"""Prefetch offload: weights live in host memory and are copied ahead of use into a ring of slots.

Module i of the offloaded ones owns slot i % step for good. After a module computed, the copy for
the next owner of its slot starts, while the modules in between compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from harness.refengine.device import get_current_device

from .base import BaseOffloader, is_selected, should_pin_memory
from .buffer_pool import StaticBufferPool
from .forward import Forward, replace_forward
from .module_offloader import ModuleOffloader


class PrefetchOffloader(BaseOffloader):
    """Offloads the last `num_in_group` modules of each `group_size`.

    Args:
        group_size: Modules per group.
        num_in_group: How many of each group are offloaded; the last ones.
        prefetch_step: Slots in the pool, and how many offloaded modules ahead a copy starts.
        offload_params: Selectors, whole dot-segments; empty takes every parameter.
        mode: Where weights go; only `cpu`.

    Raises:
        ValueError: A number is out of range, or the mode is unknown.
    """

    def __init__(
        self,
        group_size: int,
        num_in_group: int = 1,
        prefetch_step: int = 1,
        offload_params: frozenset[str] = frozenset(),
        mode: str = "cpu",
    ) -> None:
        if group_size < 1:
            raise ValueError(f"offload_group_size={group_size!r} must be >= 1 for prefetch")
        if not 1 <= num_in_group <= group_size:
            raise ValueError(
                f"offload_num_in_group={num_in_group!r} must be between 1 and "
                f"offload_group_size={group_size!r}"
            )
        if prefetch_step < 1:
            raise ValueError(f"offload_prefetch_step={prefetch_step!r} must be >= 1")
        if mode != "cpu":
            raise ValueError(f"mode={mode!r} must be 'cpu'")
        self.device = get_current_device()
        self.group_size = group_size
        self.num_in_group = num_in_group
        self.prefetch_step = prefetch_step
        self.offload_params = offload_params
        self.mode = mode
        self.pin_memory = should_pin_memory()
        self.copy_stream = self.device.new_stream("copy")
        self.module_offloaders: list[ModuleOffloader] = []
        self.buffer_pool: StaticBufferPool | None = None
        self.total_offloaded_bytes = 0
        """Set by `post_init`."""
        self.refills: dict[int, list[int]] = {}
        """Index of an offloaded module -> each index whose copy started after it ran, once."""
        self._is_wrapped = False
        self._restores: list[Callable[[], None]] = []

    def wrap_modules(
        self, modules_generator: Iterable[nn.Module], prefix: str = ""
    ) -> list[nn.Module]:
        """Offload each chosen module as it is made, before the next one takes device memory.

        Raises:
            RuntimeError: Modules were wrapped before; slots belong to one stack.
        """
        del prefix
        if self._is_wrapped:
            raise RuntimeError("wrap_modules was called before; one offloader wraps one stack")
        self._is_wrapped = True
        modules = []
        for module_index, module in enumerate(modules_generator):
            if module_index % self.group_size >= self.group_size - self.num_in_group:
                self._offload_module(module_index, module)
            modules.append(module)
        return modules

    def post_init(self) -> None:
        """Build the pool from the loaded weights, hand out slots and start the first copies.

        Raises:
            OutOfDeviceMemoryError: The device cannot hold the pool.
        """
        for offloader in self.module_offloaders:
            offloader.sync_host_copies()
        self.buffer_pool = StaticBufferPool(
            (info for offloader in self.module_offloaders for info in offloader.param_infos),
            slot_capacity=self.prefetch_step,
            device=self.device,
        )
        for index, offloader in enumerate(self.module_offloaders):
            offloader.assign_slot(index % self.prefetch_step, self.buffer_pool)
        self.total_offloaded_bytes = sum(o.offloaded_bytes for o in self.module_offloaders)
        self.refresh()

    def masters(self) -> dict[nn.Parameter, torch.Tensor]:
        """Return the host copy of each offloaded parameter, whose own bytes are a slot's."""
        return {p: c for offloader in self.module_offloaders for p, c in offloader.masters()}

    def replace(self, host_copy: torch.Tensor, param: nn.Parameter | None) -> None:
        """Keep a host copy of `param` in the place of another; None: it was deleted."""
        for offloader in self.module_offloaders:
            offloader.replace(host_copy, param)

    def refresh(self) -> None:
        """Fill the slots for the first modules, as they are before every forward."""
        for offloader in self.module_offloaders[: self.prefetch_step]:
            offloader.start_onload()

    def sync_prev_onload(self) -> None:
        """Let the current stream wait for all copies so far, ahead of a capture or a replay."""
        self._join()
        for offloader in self.module_offloaders:
            offloader.forget_copy_event()

    def join_after_forward(self) -> None:
        """At the end of a captured forward, let the current stream wait for the copies in it."""
        if self.module_offloaders:
            self._join()

    def shutdown(self) -> None:
        """Drop hooks, pool and host copies; offloaded parameters are left empty."""
        self.device.synchronize()
        for restore in self._restores:
            restore()
        for offloader in self.module_offloaders:
            offloader.drop()
        self._restores.clear()
        self.module_offloaders.clear()
        self.refills.clear()
        self.buffer_pool = None

    def _offload_module(self, module_index: int, module: nn.Module) -> None:
        names = [name for name, _ in module.named_parameters()]
        chosen = tuple(name for name in names if is_selected(name, self.offload_params))
        if not chosen:
            return
        index = len(self.module_offloaders)
        self.module_offloaders.append(
            ModuleOffloader(
                module,
                chosen,
                index=index,
                module_index=module_index,
                space="pinned" if self.pin_memory else "host",
                device=self.device,
                copy_stream=self.copy_stream,
            )
        )
        self._restores.append(
            replace_forward(module, lambda original: self._prefetching(index, original))
        )

    def _prefetching(self, index: int, original: Forward) -> Forward:
        """Make a forward that waits for its own copy, and starts the one that takes its slot."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._wait_for_layer(index)
            output = original(*args, **kwargs)
            self._start_next(index)
            return output

        return forward

    def _join(self) -> None:
        self.device.current_stream().wait_stream(self.copy_stream)

    def _wait_for_layer(self, index: int) -> None:
        self.module_offloaders[index].wait_for_onload()

    def _start_next(self, index: int) -> None:
        next_index = self._get_next_prefetch_index(
            index, self.prefetch_step, len(self.module_offloaders)
        )
        self.module_offloaders[next_index].start_onload()
        self._note_refill(index, next_index)

    def _note_refill(self, index: int, next_index: int) -> None:
        seen = self.refills.setdefault(index, [])
        if next_index not in seen:
            seen.append(next_index)

    @staticmethod
    def _get_next_prefetch_index(index: int, prefetch_step: int, num_modules: int) -> int:
        """Return the next owner of the slot of `index`: the one a ring ahead, else the first."""
        ahead = index + prefetch_step
        return ahead if ahead < num_modules else index % prefetch_step
