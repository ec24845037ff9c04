"""The driver half: says that the active target is a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpreterDriver(DriverBase):
    """A driver without a device."""

    def __init__(self) -> None:
        """Needs nothing."""

    @classmethod
    def is_active(cls) -> bool:
        """Always."""
        return True

    def map_python_to_cpp_type(self, ty: Any) -> Any:
        """As it is."""
        return ty

    def get_current_target(self) -> GPUTarget:
        """The one target."""
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        """The CPU, as torch names it."""
        return torch.device("cpu")

    def get_current_device(self) -> int:
        """The one device."""
        return 0

    def get_device_interface(self) -> Any:
        """The interface that torch has for it."""
        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        """Time one call, in milliseconds."""

        def bench(fn: Callable[[], Any], quantiles: Any = None, **_named: Any) -> Any:
            started_at = time.perf_counter()
            fn()
            elapsed_ms = (time.perf_counter() - started_at) * 1e3
            return [elapsed_ms] * len(quantiles) if quantiles else elapsed_ms

        return bench
