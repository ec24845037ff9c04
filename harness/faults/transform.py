"""Faults of weights that are replaced after loading: whoever offloaded the old ones must follow."""

from __future__ import annotations

import weakref
from typing import Any

from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name

MODEL = "seeded-llama-int8"
"""Loading leaves its packed weights transposed, in Parameters of their own."""


def _recycle_blocks(modules: EngineModules) -> None:
    """New bytes go into a block that the old Parameter owns, so that it is free when that dies."""
    owner: Any = modules.module("offloader.uva").UVAOffloader
    plain = owner.replace

    def replace(self: Any, host_copy: Any, param: Any) -> None:
        if param is None:
            plain(self, host_copy, param)
            return
        old = next(p for p in self._params if p._vllm_offloaded_cpu_data is host_copy)
        free = self.__dict__.setdefault("_free_blocks", {}).setdefault(host_copy.nbytes, [])
        block = (free.pop() if free else host_copy).view(param.shape)
        block.copy_(param.data)
        param.data = self.device.uva_view(block)
        param._vllm_offloaded_cpu_data, param._vllm_is_uva_offloaded = block, True
        key = next(key for key, copy in self.host_copies.items() if copy is host_copy)
        self.host_copies[key] = block
        self._params[:] = [p for p in self._params if p is not old] + [param]
        weakref.finalize(old, free.append, host_copy)

    replace_name(owner, "replace", replace)


def _leave_resident(modules: EngineModules) -> None:
    """The successors of offloaded parameters stay on the device; the books stay too."""
    uva: Any = modules.module("offloader.uva").UVAOffloader
    prefetch: Any = modules.module("offloader.prefetch").PrefetchOffloader
    plain_replace, plain_post_init = prefetch.replace, prefetch.post_init

    def leave(self: Any, host_copy: Any, param: Any) -> None:
        del param
        key = next(key for key, copy in self.host_copies.items() if copy is host_copy)
        index, _, name = key.partition(".")
        self._names[index].remove(name)

    def forget(self: Any, host_copy: Any, param: Any) -> None:
        del param
        plain_replace(self, host_copy, None)
        self.total_offloaded_bytes += host_copy.nbytes

    def post_init(self: Any) -> None:
        counted = self.total_offloaded_bytes
        plain_post_init(self)
        self.total_offloaded_bytes += counted

    replace_name(uva, "replace", leave)
    replace_name(prefetch, "replace", forget)
    replace_name(prefetch, "post_init", post_init)


HOST_BLOCK_RECYCLED = Fault(
    name="host-block-recycled",
    summary="a post-load step drops the only owner of a host copy that a view still reads",
    seen_in=("vllm#18298",),
    defect_class="C",
    killed_by=("tokens", "integrity"),
    blind="effect, placement and memory; weights that are not replaced after loading",
    modes=("uva",),
    model=MODEL,
    before_start=_recycle_blocks,
)

UNOFFLOADED_BY_TRANSFORM = Fault(
    name="unoffloaded-by-transform",
    summary="a post-load step makes resident tensors and does not offload them again",
    seen_in=("vllm#32991",),
    defect_class="E",
    killed_by=("effect", "placement", "memory"),
    blind="tokens, logs; weights that are not replaced after loading",
    model=MODEL,
    before_start=_leave_resident,
)
