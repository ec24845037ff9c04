"""Faults that need a step the engine does not have yet: listed, never called killed."""

from __future__ import annotations

from .base import Fault

HOST_BLOCK_RECYCLED = Fault(
    name="host-block-recycled",
    summary="a post-load step drops the only owner of a host copy that a view still reads",
    seen_in=("vllm#18298",),
    defect_class="C",
    killed_by=("integrity",),
    blind="effect, memory",
    needs="post-load transform step",
)

UNOFFLOADED_BY_TRANSFORM = Fault(
    name="unoffloaded-by-transform",
    summary="a post-load step makes resident tensors and does not offload them again",
    seen_in=("vllm#32991",),
    defect_class="E",
    killed_by=("memory", "effect"),
    blind="tokens, logs",
    needs="post-load transform step",
)
