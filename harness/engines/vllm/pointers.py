"""Where a tensor's bytes are, asked of the CUDA driver and not of the tensor's type."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from harness.core import Space

MEMORY_TYPE = 2
"""CU_POINTER_ATTRIBUTE_MEMORY_TYPE of the CUDA driver API."""
HOST_MEMORY = 1
"""CU_MEMORYTYPE_HOST."""


def memory_space(tensor: torch.Tensor) -> Space:
    """`device`, `pinned` or `host`; a CUDA tensor on host memory is a view of pinned memory."""
    if not tensor.is_cuda:
        return "pinned" if tensor.is_pinned() else "host"
    if not tensor.numel():
        return "device"
    kind = ctypes.c_uint()
    address = ctypes.c_uint64(tensor.untyped_storage().data_ptr())
    status = _driver().cuPointerGetAttribute(ctypes.byref(kind), MEMORY_TYPE, address)
    if status != 0:
        raise RuntimeError(f"cuPointerGetAttribute failed with status {status}")
    return "pinned" if kind.value == HOST_MEMORY else "device"


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
