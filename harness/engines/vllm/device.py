"""The device of a real engine as recorders see it: streams by handle, the pool's allocations.

It has the calls through which recorders, poison and delays reach the embedded engine's device, so
that they work on vLLM unchanged; taps.py leads vLLM's own copies and waits through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.engines.base import POOL_KIND


class Work:
    """One thing the host queued, as observers expect it."""

    __slots__ = ("__weakref__", "args", "is_copy", "reads", "seq", "site", "stream", "writes")

    def __init__(
        self,
        seq: int,
        stream: LiveStream,
        *,
        site: str,
        reads: Sequence[torch.Tensor] = (),
        writes: Sequence[torch.Tensor] = (),
        is_copy: bool = False,
    ) -> None:
        self.seq = seq
        self.stream = stream
        self.site = site
        self.args: tuple[Any, ...] = ()
        self.reads = reads
        self.writes = writes
        self.is_copy = is_copy


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class LiveStream:
    """A stream of the process, the same object for the same handle."""

    name: str
    raw: Any
    """The torch.cuda.Stream; None where there is no CUDA."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolAllocation:
    """Memory of one buffer of the static pool; it lives as long as the engine."""

    address: int
    kind: str = POOL_KIND

    def owner(self) -> object:
        """Not None: never freed."""
        return self


class LiveDevice:
    """Where vLLM computes in this process.

    Args:
        name: `cuda`, or `cpu` where copies are made at once.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.observers: list[Any] = []
        self._allocations: dict[int, PoolAllocation] = {}
        self._streams: dict[int, LiveStream] = {}
        self._next_seq = 0

    def allocation_of(self, tensor: torch.Tensor) -> PoolAllocation | None:
        """The pool allocation a tensor lies in; None elsewhere."""
        return self._allocations.get(tensor.untyped_storage().data_ptr())

    def adopt(self, buffer: torch.Tensor) -> None:
        """Know `buffer` as one of the static pool's."""
        address = buffer.untyped_storage().data_ptr()
        self._allocations.setdefault(address, PoolAllocation(address))

    def current_stream(self) -> LiveStream:
        """The stream that work is queued on now."""
        return self.stream_of(torch.cuda.current_stream() if self.name == "cuda" else None)

    def stream_of(self, raw: Any, *, name: str = "") -> LiveStream:
        """The stream of a torch.cuda.Stream; named `compute` or `copy` where that is known."""
        handle = 0 if raw is None else int(raw.cuda_stream)
        known = self._streams.get(handle)
        if known is None:
            taken = {stream.name for stream in self._streams.values()}
            free = "compute" if "compute" not in taken else f"stream {len(self._streams)}"
            known = self._streams[handle] = LiveStream(name or free, raw)
        return known

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        reads: Sequence[torch.Tensor] = (),
        writes: Sequence[torch.Tensor] = (),
        site: str = "",
    ) -> Work:
        """Tell observers of work on the current stream, then do it."""
        work = self._work(site, reads=reads, writes=writes)
        for observer in self.observers:
            observer.on_launch(work)
            observer.on_run(work)
        with torch.no_grad():
            fn(*args)
        return work

    def copy_async(self, dst: torch.Tensor, src: torch.Tensor, *, site: str = "") -> None:
        """Queue a copy on the current stream, and tell observers of it."""
        with torch.no_grad():
            plain_copy(dst, src, non_blocking=True)
        if self.observers:
            work = self._work(site, reads=(src,), writes=(dst,), is_copy=True)
            for observer in self.observers:
                observer.on_copy(work)

    def read(self, tensors: Sequence[torch.Tensor], *, site: str) -> None:
        """Tell observers that compute queued next reads `tensors`."""
        self.launch(_nothing, reads=tensors, site=site)

    def on_record(self, event: Any, raw: Any) -> None:
        """An event was recorded on a stream (None: the current one)."""
        stream = self.current_stream() if raw is None else self.stream_of(raw)
        for observer in self.observers:
            observer.on_record(event, stream)

    def on_wait(self, event: Any, raw: Any) -> None:
        """A stream (None: the current one) was told to wait for an event."""
        stream = self.current_stream() if raw is None else self.stream_of(raw)
        for observer in self.observers:
            observer.on_wait(stream, event)

    def on_host_wait(self, target: Any) -> None:
        """The host waited for an event, a LiveStream, or everything (None)."""
        for observer in self.observers:
            observer.on_host_wait(target)

    def _work(self, site: str, **declared: Any) -> Work:
        self._next_seq += 1
        return Work(self._next_seq, self.current_stream(), site=site, **declared)


def _nothing() -> None:
    """Work that somebody else queues."""


plain_copy = torch.Tensor.copy_
"""torch's own, whatever stands in its place later."""
_devices: list[LiveDevice] = []


def get_device(name: str) -> LiveDevice:
    """Make the device of this process; recorders are put on it as it is made."""
    return LiveDevice(name)


def live_device(name: str | None = None) -> LiveDevice | None:
    """The device of this process; made on the first call that names its kind."""
    if not _devices and name is not None:
        _devices.append(get_device(name))
    return _devices[0] if _devices else None
