"""Weight offloaders with vLLM's names: none, UVA and prefetch."""

from __future__ import annotations

from .base import (
    BaseOffloader,
    NoopOffloader,
    create_offloader,
    drop_offloader,
    get_offloader,
    set_offloader,
    should_pin_memory,
)
from .buffer_pool import ParamInfo, StaticBufferPool
from .module_offloader import ModuleOffloader
from .prefetch import PrefetchOffloader
from .uva import UVAOffloader

__all__ = [
    "BaseOffloader",
    "ModuleOffloader",
    "NoopOffloader",
    "ParamInfo",
    "PrefetchOffloader",
    "StaticBufferPool",
    "UVAOffloader",
    "create_offloader",
    "drop_offloader",
    "get_offloader",
    "set_offloader",
    "should_pin_memory",
]
