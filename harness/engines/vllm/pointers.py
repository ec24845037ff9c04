"""Where a tensor's bytes are, asked of the CUDA driver and not of the tensor's type."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from harness.core import Space

MEMORY_TYPE = 2
"""CU_POINTER_ATTRIBUTE_MEMORY_TYPE of the CUDA driver API."""
MAPPED = 13
"""CU_POINTER_ATTRIBUTE_MAPPED: there is memory behind the address."""
HOST_MEMORY = 1
"""CU_MEMORYTYPE_HOST."""


def memory_space(tensor: torch.Tensor) -> Space:
    """`device`, `pinned` or `host`; a CUDA tensor on host memory is a view of pinned memory."""
    if not tensor.is_cuda:
        return "pinned" if tensor.is_pinned() else "host"
    if not tensor.numel():
        return "device"
    status, kind = _ask(MEMORY_TYPE, tensor)
    if status != 0:  # its engine sleeps: no memory is behind the address
        return "device"
    return "pinned" if kind == HOST_MEMORY else "device"


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether there is memory behind a tensor's address; not so while its engine sleeps.

    Where the driver does not say of a tensor that surely has memory that it is mapped, its word
    counts only when it knows nothing of the address.
    """
    if not tensor.is_cuda or not tensor.numel():
        return True
    status, kind = _ask(MEMORY_TYPE, tensor)
    if status != 0:
        return False
    return kind == HOST_MEMORY or not _tells_mapped(tensor.device) or _is_said_mapped(tensor)


def _is_said_mapped(tensor: torch.Tensor) -> bool:
    status, is_there = _ask(MAPPED, tensor)
    return status == 0 and bool(is_there)


@functools.cache
def _tells_mapped(device: torch.device) -> bool:
    return _is_said_mapped(torch.zeros(1, device=device))


def _ask(attribute: int, tensor: torch.Tensor) -> tuple[int, int]:
    """The driver's status, and an attribute of the address of a tensor's storage."""
    found = ctypes.c_uint()
    address = ctypes.c_uint64(tensor.untyped_storage().data_ptr())
    status = _driver().cuPointerGetAttribute(ctypes.byref(found), attribute, address)
    return int(status), found.value


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
