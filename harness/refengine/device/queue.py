"""Queued work of the simulated device: work, records, waits, streams and events.

Everything here is bookkeeping in host order; who runs when is decided in `simulated`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .base import Event, Pending, Stream
from .isolation import is_captured_wait, refuse_host_wait

if TYPE_CHECKING:
    from .capture import Capture
    from .simulated import SimulatedDevice


class Work(Pending[Any]):
    """A piece of queued work, and the promise of its result."""

    __slots__ = (
        "args", "deps", "done", "error", "fn", "is_copy", "reads", "seq", "site", "stream",
        "value", "writes",
    )  # fmt: skip

    def __init__(
        self,
        stream: SimulatedStream,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        site: str,
    ) -> None:
        self.stream = stream
        self.fn: Callable[..., Any] | None = fn
        self.args = args
        self.reads = reads
        self.writes = writes
        self.site = site
        self.seq = 0
        self.is_copy = False
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.deps: list[Work] | None = None
        for arg in args:
            if isinstance(arg, Work) and not arg.done and arg.stream is not stream:
                self.deps = [*(self.deps or ()), arg]

    def result(self) -> Any:
        """Run the device until this work ran, and return what it returned."""
        refuse_host_wait(self.stream.device, f"result of {self.site!r}")
        if not self.done:
            self.stream.device.run_until(self)
        for observer in self.stream.device.observers:
            observer.on_host_wait(self)
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        """Run now, keep the outcome, and let go of all that was needed to run only.

        Raises:
            Exception: Whatever the work raised, with its site added; `result` raises it again.
        """
        fn, args = self.fn, [arg.result() if isinstance(arg, Work) else arg for arg in self.args]
        self.fn, self.args, self.reads, self.writes, self.deps = None, (), (), (), None
        self.done = True
        try:
            self.value = fn(*args) if fn is not None else None
        except Exception as error:
            error.add_note(f"raised by work launched at {self.site!r}")
            self.error = error
            raise


class Record:
    """A point in a stream: done when everything queued before it ran."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class Wait:
    """Holds its stream until a record is done."""

    __slots__ = ("record",)

    def __init__(self, record: Record) -> None:
        self.record = record


class SimulatedEvent(Event):
    """An event; holds the point it was last recorded at."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device = device
        self.name = name
        self._record: Record | None = None
        self.recorded_in: Capture | None = None
        """The capture that it was last recorded in; None outside of any."""

    @property
    def is_recorded(self) -> bool:
        """Tell whether it was ever recorded."""
        return self._record is not None

    def record(self, stream: Stream | None = None) -> None:
        """Move the event to the end of `stream`'s queue."""
        target = self.device.own_stream(stream)
        capture = self.device.capturing
        if capture is not None and capture.takes(target):
            self._record, self.recorded_in = None, capture
            capture.add_record(self, target)
            return
        self._record, self.recorded_in = target.push_record(), None
        for observer in self.device.observers:
            observer.on_record(self, target)

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of `stream` wait for the point recorded so far."""
        target = self.device.own_stream(stream)
        if is_captured_wait(self, target):
            return
        if self._record is not None and not self._record.done:
            target.queue.append(Wait(self._record))
        for observer in self.device.observers:
            observer.on_wait(target, self)

    def synchronize(self) -> None:
        """Run the device until the recorded point is reached."""
        refuse_host_wait(self.device, f"event {self.name!r}", self.recorded_in)
        if self._record is not None:
            self.device.run_until(self._record)
        for observer in self.device.observers:
            observer.on_host_wait(self)

    def query(self) -> bool:
        """Tell whether the point is reached; if not, time passes: one piece of work runs."""
        refuse_host_wait(self.device, f"event {self.name!r}", self.recorded_in)
        if self._record is None or self._record.done:
            for observer in self.device.observers:
                observer.on_host_wait(self)
            return True
        self.device.run_once()
        return False


class SimulatedStream(Stream):
    """An in-order queue of work, records and waits."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device: SimulatedDevice = device
        self.name = name
        self.queue: deque[Work | Record | Wait] = deque()

    def push_record(self) -> Record:
        """Queue a point; on an idle stream it is reached at once."""
        record = Record()
        if self.queue:
            self.queue.append(record)
        else:
            record.done = True
        return record

    def synchronize(self) -> None:
        """Run the device until everything queued here so far ran."""
        refuse_host_wait(self.device, f"stream {self.name!r}")
        if self.queue:
            self.device.run_until(self.push_record())
        for observer in self.device.observers:
            observer.on_host_wait(self)
