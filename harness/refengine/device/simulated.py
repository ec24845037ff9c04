"""A device made of torch CPU tensors, whose queued work runs in an order that is chosen.

Work waits in its stream's queue until the host waits for something; then a scheduler picks, one
piece at a time, which stream goes next. No threads, no clocks: the same choices, the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import torch

from .base import Device, Pending, Stream, extent_of
from .capture import Capture, Captured, SimulatedGraph, capturing
from .isolation import refuse_host_wait
from .memory import Space
from .queue import Record, SimulatedEvent, SimulatedStream, Work
from .schedule import Scheduler, create_scheduler

T = TypeVar("T")

ALIGNMENT_BYTES = 64
POISON_BYTE = 0xFF
"""Repeated, it is NaN in every float type."""


class _StreamScope:
    """Makes a stream current inside a `with` block."""

    __slots__ = ("_device", "_previous", "_stream")

    def __init__(self, device: SimulatedDevice, stream: SimulatedStream) -> None:
        self._device = device
        self._stream = stream

    def __enter__(self) -> SimulatedStream:
        self._previous = self._device.current
        self._device.current = self._stream
        return self._stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._device.current = self._previous


class SimulatedDevice(Device):
    """Streams, memory spaces and a scheduler; everything runs on the caller's thread.

    Args:
        capacity_bytes: Size of the device space; None is no limit.
        schedule: Name of a scheduler, or a scheduler.
        seed: Seed for `schedule="seeded"`.
        unified_memory: Pinned and viewed host bytes count against `capacity_bytes` too.
        pinned_granularity: How pinned allocations round up: `exact` or `power_of_two`.
    """

    name = "simulated"
    pin_memory_available = True
    uva_available = True
    uva_needs_pinned = False

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        schedule: str | Scheduler = "in_order",
        seed: int = 0,
        unified_memory: bool = False,
        pinned_granularity: str = "exact",
    ) -> None:
        super().__init__(
            capacity_bytes, unified_memory=unified_memory, pinned_granularity=pinned_granularity
        )
        named = isinstance(schedule, str)
        self.scheduler = create_scheduler(schedule, seed) if isinstance(schedule, str) else schedule
        self.schedule = schedule if named else type(schedule).__name__
        self.poison_on_free = False
        self.default_stream = SimulatedStream(self, "default")
        self.current = self.default_stream
        self._streams = [self.default_stream]
        self._next_seq = 0
        self._running: Work | None = None
        self.capturing: Capture | None = None
        """The capture in progress."""

    def empty(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        space: Space = "device",
        kind: str = "weights",
        stride: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Allocate; when the device space is full, queued work runs first, as it holds memory.

        With `poison_on_free`, freed memory reads as NaN when it is handed out again.
        """
        num_bytes = extent_of(shape, stride) * dtype.itemsize
        if not self.ledger.has_room(num_bytes, space):
            if self._running is None:
                self._run_all()
            if not self.ledger.has_room(num_bytes, space):
                raise self.ledger.out_of_memory(num_bytes, kind, space)
        size = max(num_bytes, dtype.itemsize)
        owner = np.empty(size + ALIGNMENT_BYTES, np.uint8)
        if self.poison_on_free:
            owner.fill(POISON_BYTE)
        start = -owner.ctypes.data % ALIGNMENT_BYTES
        flat = torch.from_numpy(owner[start : start + size])
        self.ledger.add(owner, address=flat.data_ptr(), num_bytes=num_bytes, space=space, kind=kind)
        flat = flat.view(dtype)
        if stride is not None:
            return flat.as_strided(tuple(shape), tuple(stride))
        return flat[:0].view(tuple(shape)) if num_bytes == 0 else flat.view(tuple(shape))

    def uva_view(self, host_tensor: torch.Tensor) -> torch.Tensor:
        """Return another tensor on the same bytes; `space_of` still says where they are.

        Raises:
            ValueError: The bytes are not in one of this device's host spaces.
            OutOfDeviceMemoryError: They count against unified memory, and do not fit.
        """
        allocation = self.allocation_of(host_tensor)
        if allocation is None or allocation.space == "device":
            space = "memory of another owner" if allocation is None else "space='device'"
            raise ValueError(f"uva_view needs a host or pinned tensor of this device, got {space}")
        self.ledger.note_view(allocation)
        return host_tensor.detach().view_as(host_tensor)

    def current_stream(self) -> SimulatedStream:
        """Return the stream that work is queued on now."""
        return self.current

    def new_stream(self, name: str) -> SimulatedStream:
        """Create a stream."""
        stream = SimulatedStream(self, name)
        self._streams.append(stream)
        return stream

    def stream(self, stream: Stream) -> _StreamScope:
        """Make `stream` current inside a `with` block."""
        return _StreamScope(self, self.own_stream(stream))

    def new_event(self, name: str = "") -> SimulatedEvent:
        """Create an event that was never recorded."""
        return SimulatedEvent(self, name)

    def own_stream(self, stream: Stream | None) -> SimulatedStream:
        """Return `stream` (None: the current one) after checking that it is of this device."""
        if stream is None:
            return self.current
        if not isinstance(stream, SimulatedStream) or stream.device is not self:
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
        """Queue `fn(*args)` on the current stream; it also waits for its `Pending` arguments."""
        capture = self.capturing
        if capture is not None and capture.takes(self.current):
            return capture.add_launch(fn, args, reads=reads, writes=writes, site=site)
        args = tuple([arg.latest() if type(arg) is Captured else arg for arg in args])
        work = Work(self.current, fn, args, reads=reads, writes=writes, site=site)
        self._push(work)
        for observer in self.observers:
            observer.on_launch(work)
        return work

    def copy_async(
        self, dst: torch.Tensor, src: torch.Tensor | Pending[torch.Tensor], *, site: str = ""
    ) -> None:
        """Queue a copy; from pageable memory too, although a real copy engine may wait there."""
        if self.capturing is not None and self.capturing.takes(self.current):
            self.capturing.add_copy(dst, src, site)
            return
        src = src.latest() if isinstance(src, Captured) else src
        reads = (src,) if isinstance(src, torch.Tensor) else ()
        work = Work(
            self.current, torch.Tensor.copy_, (dst, src), reads=reads, writes=(dst,), site=site
        )
        work.is_copy = True
        self._push(work)
        for observer in self.observers:
            observer.on_copy(work)

    def capture(self, name: str) -> AbstractContextManager[SimulatedGraph]:
        """Capture what is queued on the current stream, and on streams forked from it."""
        return capturing(self, name)

    @property
    def is_running(self) -> bool:
        """Tell whether a piece of work runs right now."""
        return self._running is not None

    def synchronize(self) -> None:
        """Run everything queued on every stream."""
        refuse_host_wait(self, "the device")
        self._run_all()
        for observer in self.observers:
            observer.on_host_wait(None)

    def run_until(self, target: Work | Record) -> None:
        """Run queued work, as the scheduler picks, until `target` is done and no further."""
        if self._running is not None:
            raise RuntimeError(f"work at {self._running.site!r} waits for its own device")
        with torch.no_grad():
            while True:
                heads = self._runnable()
                if target.done:
                    return
                assert heads, "a target is queued, so something before it can run"
                self._run(heads)

    def run_once(self) -> None:
        """Run one piece of queued work, if there is any, and pass the records it reached."""
        with torch.no_grad():
            if heads := self._runnable():
                self._run(heads)
                self._runnable()

    def _run_all(self) -> None:
        with torch.no_grad():
            while heads := self._runnable():
                self._run(heads)

    def _push(self, work: Work) -> None:
        work.seq = self._next_seq
        self._next_seq += 1
        self.current.queue.append(work)

    def _runnable(self) -> list[Work]:
        """Pass records and satisfied waits, and return the heads of streams that could run."""
        passed_record = True
        heads: list[Work] = []
        while passed_record:
            passed_record = False
            heads.clear()
            for stream in self._streams:
                queue = stream.queue
                while queue:
                    item = queue[0]
                    if isinstance(item, Work):
                        if item.deps is None or all(dep.done for dep in item.deps):
                            heads.append(item)
                        break
                    if isinstance(item, Record):
                        item.done = passed_record = True
                    elif not item.record.done:
                        break
                    queue.popleft()
        return heads

    def _run(self, heads: list[Work]) -> None:
        work = heads[0] if len(heads) == 1 else heads[self.scheduler.pick(heads)]
        work.stream.queue.popleft()
        self._running = work
        try:
            for observer in self.observers:
                observer.on_run(work)
            work.run()
        finally:
            self._running = None
