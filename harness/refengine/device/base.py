"""What a device is: memory spaces, streams, events and queued work, with CUDA's semantics.

Two back ends stand behind these classes, `simulated` and `cuda`; the engine knows only this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

import torch

from .memory import Allocation, Ledger, Space

T = TypeVar("T")


class Pending(ABC, Generic[T]):
    """The result of launched work, which may not have run yet."""

    __slots__ = ("__weakref__",)

    @abstractmethod
    def result(self) -> T:
        """Wait on the host until the work ran, and return what it returned.

        Raises:
            Exception: Whatever the work raised.
        """


class Event(ABC):
    """A point in a stream. Never recorded: every wait for it is no wait. Recording moves it."""

    name: str

    @abstractmethod
    def record(self, stream: Stream | None = None) -> None:
        """Move the event to the end of `stream`'s queue as it is now (default: current)."""

    @abstractmethod
    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of `stream` (default: current) wait for the point recorded so far."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait on the host until the recorded point is reached."""

    @abstractmethod
    def query(self) -> bool:
        """Tell whether the recorded point is reached; True if never recorded."""


class Stream(ABC):
    """An in-order queue of work; the host runs ahead of it."""

    name: str
    device: Device

    def wait_event(self, event: Event) -> None:
        """Make later work of this stream wait for the point `event` was recorded at so far."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make later work of this stream wait for everything queued on `stream` so far."""
        self.wait_event(stream.record_event(self.device.new_event(f"{stream.name}_tail")))

    def record_event(self, event: Event) -> Event:
        """Record `event` at the end of this stream's queue, and return it."""
        event.record(self)
        return event

    @abstractmethod
    def synchronize(self) -> None:
        """Wait on the host until everything queued on this stream so far ran."""


class Graph(ABC):
    """Captured work, which a replay queues again."""

    name: str

    @abstractmethod
    def replay(self) -> None:
        """Queue everything again, on the same tensors, after the current stream's work so far."""

    @abstractmethod
    def reset(self) -> None:
        """Let go of what was captured; a replay is an error from then on."""


class Observer(Protocol):
    """Sees what the host queues, in host order, and each piece of work just before it runs."""

    def on_launch(self, work: Any) -> None:
        """A piece of work with `seq, stream, site, args, reads, writes` was queued."""
        ...

    def on_copy(self, work: Any) -> None:
        """A copy was queued: as work, with `is_copy` true."""
        ...

    def on_record(self, event: Event, stream: Stream) -> None:
        """`event` was recorded on `stream`."""
        ...

    def on_wait(self, stream: Stream, event: Event) -> None:
        """`stream` was told to wait for `event` (also when that is no wait)."""
        ...

    def on_host_wait(self, target: Pending[Any] | Event | Stream | None) -> None:
        """The host waited for `target` (None: for everything): it comes before later launches."""
        ...

    def on_run(self, work: Any) -> None:
        """A piece of work, or a copy, is about to run: its `reads` hold what it will see."""
        ...


class Device(ABC):
    """Memory spaces `device`, `host` and `pinned`, and streams that work in them.

    Args:
        capacity_bytes: Size of the device space; None is no limit. Host spaces have none.
        unified_memory: Pinned and viewed host bytes count against `capacity_bytes` too.
        pinned_granularity: How pinned allocations round up: `exact` or `power_of_two`.
    """

    name: str
    pin_memory_available: bool
    uva_available: bool
    uva_needs_pinned: bool
    """True when a view is possible of pinned memory only."""
    capturing: object | None = None
    """The capture in progress."""

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        unified_memory: bool = False,
        pinned_granularity: str = "exact",
    ) -> None:
        self.ledger = Ledger(
            capacity_bytes, is_unified=unified_memory, pinned_granularity=pinned_granularity
        )
        self.observers: list[Observer] = []

    @property
    def capacity_bytes(self) -> int | None:
        """Size of the device space in bytes; None is no limit."""
        return self.ledger.capacity_bytes

    @abstractmethod
    def empty(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        space: Space = "device",
        kind: str = "weights",
        stride: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Allocate an uninitialised tensor of `shape`; freed with the last tensor on its storage.

        Args:
            shape: Sizes.
            dtype: Element type.
            space: `device`, `host` or `pinned`.
            kind: What it is for: weights, kv_cache, buffer_pool, state.
            stride: Strides in elements; None is contiguous.

        Raises:
            OutOfDeviceMemoryError: The device's capacity cannot hold it.
        """

    def to(self, tensor: torch.Tensor, space: Space, *, kind: str = "weights") -> torch.Tensor:
        """Copy into a new allocation, synchronously; dense strides are kept.

        Args:
            tensor: Any tensor, of this device or not.
            space: Where the copy goes.
            kind: What the copy is for.

        Raises:
            OutOfDeviceMemoryError: The device's capacity cannot hold it.
        """
        stride = tensor.stride() if is_dense(tensor) else None
        copy = self.empty(tensor.shape, tensor.dtype, space=space, kind=kind, stride=stride)
        self.current_stream().synchronize()
        with torch.no_grad():
            copy.copy_(tensor)
        return copy

    def allocation_of(self, tensor: torch.Tensor) -> Allocation | None:
        """Return the allocation under `tensor`; None if this device did not make it."""
        return self.ledger.find(tensor.untyped_storage().data_ptr())

    def space_of(self, tensor: torch.Tensor) -> Space:
        """Return where the bytes of `tensor` are; memory of others counts as `host`."""
        allocation = self.allocation_of(tensor)
        return "host" if allocation is None else allocation.space

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Tell whether the bytes of `tensor` are in pinned memory, asked of the allocation."""
        return self.space_of(tensor) == "pinned"

    def memory_stats(self) -> dict[str, Any]:
        """Return bytes as `{space: {current, peak, by_kind}}`, `capacity`, and what it counts.

        `pinned` also has `taken`: with the allocator's rounding; None where nobody can say.
        """
        return self.ledger.stats()

    def reset_peak_memory_stats(self) -> None:
        """Let every peak start again from what is in use now."""
        self.ledger.reset_peak()

    @abstractmethod
    def uva_view(self, host_tensor: torch.Tensor) -> torch.Tensor:
        """Return a device-visible tensor on the very bytes of `host_tensor`.

        Raises:
            ValueError: The bytes are not where a view is possible.
        """

    @abstractmethod
    def current_stream(self) -> Stream:
        """Return the stream that work is queued on now."""

    @abstractmethod
    def new_stream(self, name: str) -> Stream:
        """Create a stream."""

    @abstractmethod
    def stream(self, stream: Stream) -> AbstractContextManager[Stream]:
        """Make `stream` current inside a `with` block."""

    @abstractmethod
    def new_event(self, name: str = "") -> Event:
        """Create an event that was never recorded."""

    @abstractmethod
    def launch(
        self,
        fn: Callable[..., T],
        *args: Any,
        reads: Sequence[torch.Tensor] = (),
        writes: Sequence[torch.Tensor] = (),
        site: str = "",
    ) -> Pending[T]:
        """Queue `fn(*args)` on the current stream.

        Args:
            fn: The work; it sees each `Pending` argument as that argument's result.
            args: Arguments; only top-level ones are looked at for `Pending`.
            reads: Tensors whose bytes it reads, declared for ordering checks.
            writes: Tensors whose bytes it writes.
            site: Name of the place in the engine, for reports.
        """

    @abstractmethod
    def copy_async(
        self, dst: torch.Tensor, src: torch.Tensor | Pending[torch.Tensor], *, site: str = ""
    ) -> None:
        """Queue a copy of `src` into `dst` (same shape) on the current stream."""

    @abstractmethod
    def capture(self, name: str) -> AbstractContextManager[Graph]:
        """Capture what is queued inside a `with` block, instead of running it.

        Raises:
            CaptureError: A rule of isolation is broken, or this device cannot capture.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait on the host until everything queued on every stream ran."""


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether the elements fill their extent without gaps or overlap (in any dim order)."""
    return extent_of(tensor.shape, tensor.stride()) == tensor.numel() and all(
        step > 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )


def extent_of(shape: Sequence[int], stride: Sequence[int] | None) -> int:
    """Return how many elements a tensor spans from its first to its last one."""
    if 0 in shape:
        return 0
    if stride is None:
        num_elements = 1
        for size in shape:
            num_elements *= size
        return num_elements
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
