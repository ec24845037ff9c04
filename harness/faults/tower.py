"""Faults of modules outside the decoder's stack, which an offloader may never see."""

from __future__ import annotations

from typing import Any

from harness.core import OffloadConfig
from harness.engines.base import EngineModules

from .base import Fault
from .patch import replace_name

MODEL = "seeded-llama-tower"
SELECTED = frozenset({"prompt_tower"})


def _only_the_stack(modules: EngineModules) -> None:
    uva: Any = modules.module("offloader.uva").UVAOffloader
    replace_name(uva, "supports_tower_offload", False)


def _tower_counts_once_more(modules: EngineModules) -> None:
    """What the stack's budget is spent on includes the tower, and then the tower comes again."""
    owner: Any = modules.module("offloader.base").BaseOffloader
    plain = owner.wrap_tower

    def wrap_tower(self: Any, tower: Any, name: str) -> None:
        plain(self, tower, name)
        if self.supports_tower_offload:
            self.cpu_offload_bytes *= 2

    replace_name(owner, "wrap_tower", wrap_tower)


TOWER_NEVER_OFFLOADED = Fault(
    name="tower-never-offloaded",
    summary="only the decoder's stack goes through the offloader: a tower's selector does nothing",
    seen_in=("vllm#53120",),
    defect_class="F",
    killed_by=("effect", "placement", "memory"),
    blind="tokens; prefetch, whose ring is of the stack alone; models without a tower",
    modes=("uva", "uva-copy"),
    offloads={
        "uva": OffloadConfig(cpu_offload_gb=1, cpu_offload_params=SELECTED),
        "uva-copy": OffloadConfig(cpu_offload_gb=1, cpu_offload_params=SELECTED, uva=False),
    },
    model=MODEL,
    before_start=_only_the_stack,
)

TOWER_COUNTED_TWICE = Fault(
    name="tower-counted-twice",
    summary="a tower's bytes are taken from the budget twice: less of the stack is offloaded",
    seen_in=("1Cat-vLLM#297",),
    defect_class="H",
    killed_by=("effect", "placement", "memory"),
    blind="tokens; a budget that holds all twice over; models without a tower",
    modes=("uva", "uva-copy"),
    offloads={
        "uva": OffloadConfig(cpu_offload_gb=0.0015),
        "uva-copy": OffloadConfig(cpu_offload_gb=0.0015, uva=False),
    },
    model=MODEL,
    before_start=_tower_counts_once_more,
)
