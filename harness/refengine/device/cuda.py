"""The same device on real hardware: torch.cuda streams and events, pinned memory, mapped views.

Work is launched at once and runs when the hardware gets to it; only memory is accounted here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import torch

from .base import Device, Event, Graph, Pending, Stream, extent_of
from .isolation import CaptureError
from .memory import Space

T = TypeVar("T")


class Launched(Pending[T], Generic[T]):
    """Work that was handed to the hardware."""

    __slots__ = ("args", "is_copy", "reads", "seq", "site", "stream", "value", "writes")
    value: T

    def __init__(self, stream: CudaStream, *, seq: int, site: str) -> None:
        self.stream = stream
        self.seq = seq
        self.site = site
        self.is_copy = False
        self.args: tuple[Any, ...] = ()
        self.reads: Sequence[torch.Tensor] = ()
        self.writes: Sequence[torch.Tensor] = ()

    def result(self) -> T:
        """Wait until the stream got here, and return what was launched."""
        self.stream.raw.synchronize()
        for observer in self.stream.device.observers:
            observer.on_host_wait(self)
        return self.value


class CudaEvent(Event):
    """A torch.cuda.Event."""

    def __init__(self, device: CudaDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.raw = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self, stream: Stream | None = None) -> None:
        """Move the event to the end of `stream`'s queue."""
        target = self.device.own_stream(stream)
        self.raw.record(target.raw)
        for observer in self.device.observers:
            observer.on_record(self, target)

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of `stream` wait for the point recorded so far."""
        target = self.device.own_stream(stream)
        self.raw.wait(target.raw)
        for observer in self.device.observers:
            observer.on_wait(target, self)

    def synchronize(self) -> None:
        """Wait on the host until the recorded point is reached."""
        self.raw.synchronize()
        for observer in self.device.observers:
            observer.on_host_wait(self)

    def query(self) -> bool:
        """Tell whether the recorded point is reached."""
        is_reached = bool(self.raw.query())  # type: ignore[no-untyped-call]
        for observer in self.device.observers if is_reached else ():
            observer.on_host_wait(self)
        return is_reached


class CudaStream(Stream):
    """A torch.cuda.Stream."""

    def __init__(self, device: CudaDevice, name: str, raw: torch.cuda.Stream) -> None:
        self.device: CudaDevice = device
        self.name = name
        self.raw = raw

    def synchronize(self) -> None:
        """Wait on the host until everything queued on this stream so far ran."""
        self.raw.synchronize()
        for observer in self.device.observers:
            observer.on_host_wait(self)


class CudaDevice(Device):
    """One CUDA device.

    Args:
        capacity_bytes: Refuse device memory beyond this; None leaves it to the hardware.

    Raises:
        RuntimeError: There is no CUDA device here.
    """

    name = "cuda"
    pin_memory_available = True
    uva_available = True
    uva_needs_pinned = True

    def __init__(self, capacity_bytes: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("device='cuda' needs a CUDA device and driver; use 'simulated'")
        super().__init__(capacity_bytes)
        self.default_stream = CudaStream(self, "default", torch.cuda.current_stream())
        self.current = self.default_stream
        self._next_seq = 0

    def empty(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        space: Space = "device",
        kind: str = "weights",
        stride: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Allocate through torch's allocators; bytes asked for are counted, not their rounding."""
        num_elements = extent_of(shape, stride)
        num_bytes = num_elements * dtype.itemsize
        if not self.ledger.has_room(num_bytes, space):
            raise self.ledger.out_of_memory(num_bytes, kind)
        try:
            flat = torch.empty(
                max(num_elements, 1),
                dtype=dtype,
                device="cuda" if space == "device" else "cpu",
                pin_memory=space == "pinned",
            )
        except torch.OutOfMemoryError as error:
            raise self.ledger.out_of_memory(num_bytes, kind) from error
        storage = flat.untyped_storage()
        self.ledger.add(
            storage, address=storage.data_ptr(), num_bytes=num_bytes, space=space, kind=kind
        )
        if stride is not None:
            return flat.as_strided(tuple(shape), tuple(stride))
        return flat[:num_elements].view(tuple(shape))

    def memory_stats(self) -> dict[str, Any]:
        """Return the ledger's account; pinned bytes taken are those of torch's host allocator."""
        stats = super().memory_stats()
        ask = getattr(torch.cuda, "host_memory_stats", None)
        stats["pinned"]["taken"] = None if ask is None else ask().get("allocated_bytes.current")
        return stats

    def uva_view(self, host_tensor: torch.Tensor) -> torch.Tensor:
        """Return a CUDA tensor on the very bytes of a pinned one, which it keeps alive.

        Raises:
            ValueError: The tensor is not pinned memory of this device's making.
            RuntimeError: The driver maps the memory elsewhere for the device, or not at all.
        """
        if not self.is_pinned(host_tensor):
            raise ValueError(
                f"uva_view needs pinned memory, got space={self.space_of(host_tensor)!r}; "
                "pin it, or copy on forward (VLLM_WEIGHT_OFFLOADING_DISABLE_UVA=1)"
            )
        num_bytes = host_tensor.untyped_storage().nbytes()
        flat = torch.as_tensor(_MappedBytes(host_tensor, num_bytes), device="cuda")
        return flat.view(host_tensor.dtype).as_strided(
            host_tensor.shape, host_tensor.stride(), host_tensor.storage_offset()
        )

    def current_stream(self) -> CudaStream:
        """Return the stream that work is queued on now."""
        return self.current

    def new_stream(self, name: str) -> CudaStream:
        """Create a stream."""
        return CudaStream(self, name, torch.cuda.Stream())  # type: ignore[no-untyped-call]

    def stream(self, stream: Stream) -> AbstractContextManager[CudaStream]:
        """Make `stream` current inside a `with` block, for torch too."""
        return self._use_stream(self.own_stream(stream))

    def new_event(self, name: str = "") -> CudaEvent:
        """Create an event that was never recorded."""
        return CudaEvent(self, name)

    def own_stream(self, stream: Stream | None) -> CudaStream:
        """Return `stream` (None: the current one) after checking that it is of this device."""
        if stream is None:
            return self.current
        if not isinstance(stream, CudaStream) or stream.device is not self:
            raise ValueError(f"stream={stream.name!r} belongs to another device")
        return stream

    def launch(
        self,
        fn: Callable[..., T],
        *args: Any,
        reads: Sequence[torch.Tensor] = (),
        writes: Sequence[torch.Tensor] = (),
        site: str = "",
    ) -> Pending[T]:
        """Call `fn` now, under the current stream: what it launches is queued there."""
        values = [arg.value if isinstance(arg, Launched) else arg for arg in args]
        work: Launched[T] = self._number(site)
        if self.observers:
            work.args, work.reads, work.writes = args, reads, writes
            for observer in self.observers:
                observer.on_launch(work)
                observer.on_run(work)
            work.args = ()
        with torch.no_grad():
            work.value = fn(*values)
        return work

    def copy_async(
        self, dst: torch.Tensor, src: torch.Tensor | Pending[torch.Tensor], *, site: str = ""
    ) -> None:
        """Queue a copy; the allocator learns that this stream uses both tensors."""
        source = src.value if isinstance(src, Launched) else src
        assert isinstance(source, torch.Tensor), "a Pending of this device"
        with torch.no_grad():
            dst.copy_(source, non_blocking=True)
        for tensor in (dst, source):
            if self.space_of(tensor) == "device":
                tensor.record_stream(self.current.raw)
        if self.observers:
            work: Launched[None] = self._number(site)
            work.is_copy, work.reads, work.writes = True, (source,), (dst,)
            for observer in self.observers:
                observer.on_copy(work)

    def capture(self, name: str) -> AbstractContextManager[Graph]:
        """Refuse: the recorders could not see what a replay of a hardware graph runs."""
        raise CaptureError(f"capture(name={name!r}) needs device='simulated', this is 'cuda'")

    def synchronize(self) -> None:
        """Wait on the host until everything queued on every stream ran."""
        torch.cuda.synchronize()
        for observer in self.observers:
            observer.on_host_wait(None)

    def _number(self, site: str) -> Launched[Any]:
        self._next_seq += 1
        return Launched(self.current, seq=self._next_seq - 1, site=site)

    @contextmanager
    def _use_stream(self, stream: CudaStream) -> Iterator[CudaStream]:
        previous, self.current = self.current, stream
        try:
            with torch.cuda.stream(stream.raw):
                yield stream
        finally:
            self.current = previous


class _MappedBytes:
    """Pinned bytes as the device addresses them; torch keeps it, it keeps the host tensor."""

    def __init__(self, host_tensor: torch.Tensor, num_bytes: int) -> None:
        self.host_tensor = host_tensor
        address = host_tensor.untyped_storage().data_ptr()
        mapped = _ask_device_pointer(address)
        if mapped != address:
            raise RuntimeError(f"pinned memory at {address:#x} is mapped elsewhere: {mapped:#x}")
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (mapped, False),
            "version": 3,
        }


def _ask_device_pointer(address: int) -> int:
    """Ask the driver where the device sees a pinned host address."""
    driver = ctypes.CDLL("libcuda.so.1")
    mapped = ctypes.c_uint64()
    status = driver.cuMemHostGetDevicePointer_v2(
        ctypes.byref(mapped), ctypes.c_void_p(address), ctypes.c_uint(0)
    )
    if status != 0:
        raise RuntimeError(f"cuMemHostGetDevicePointer failed with status {status}")
    return mapped.value
