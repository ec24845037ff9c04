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

RELOAD_MISSES_MASTER = Fault(
    name="reload-misses-master",
    summary="a reload writes the slot but not the host copy: right once, old after the next refill",
    seen_in=("compressed-tensors#224", "compressed-tensors#361"),
    defect_class="D",
    killed_by=("tokens", "integrity"),
    blind="a reload of the same checkpoint",
    needs="reload step",
)

REPLAY_OF_TEMPORARY = Fault(
    name="replay-of-temporary",
    summary="a recorded graph holds the address of a temporary copy; replay does not fill it again",
    seen_in=("sglang#23664",),
    defect_class="G",
    killed_by=("tokens", "integrity"),
    blind="eager only",
    needs="graph replay",
)

OFFLOADER_OUTLIVES_ENGINE = Fault(
    name="offloader-outlives-engine",
    summary="the global offloader survives the engine; the next one starts with its spent budget",
    seen_in=("vllm#10477", "vllm#57834"),
    defect_class="H",
    killed_by=("effect", "memory"),
    blind="the first engine of a process",
    needs="second engine in the process",
)
