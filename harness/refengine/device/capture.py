"""Captured work: a graph that a replay queues again, with CUDA's rules of isolation.

Inside a capture nothing runs and observers see nothing; a replay queues through the device's usual
calls, on streams and events of the graph's own, so they see its work with the captured order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .base import Device, Event, Graph, Pending, Stream

if TYPE_CHECKING:
    from .queue import SimulatedEvent
    from .simulated import SimulatedDevice


class CaptureError(RuntimeError):
    """Something that a capture does not allow; the capture it happened in is lost."""


class CaptureIsolationError(CaptureError):
    """A wait would cross the boundary of a capture."""


class Captured(Pending[Any]):
    """The promise of captured work: stands for what the latest replay queued."""

    __slots__ = ("capture", "is_copy", "site", "work")

    def __init__(self, capture: Capture, site: str) -> None:
        self.capture = capture
        self.site = site
        self.is_copy = False
        self.work: Pending[Any] | None = None

    def latest(self) -> Pending[Any]:
        """Return the work that the latest replay queued.

        Raises:
            CaptureError: There was no replay yet.
        """
        if self.work is None:
            raise CaptureError(
                f"work site={self.site!r} of capture {self.capture.name!r} has no result yet: "
                "end the capture and replay its graph first"
            )
        return self.work

    def result(self) -> Any:
        """Wait for the latest replay of this work, and return what it returned."""
        refuse_host_wait(self.capture.device, f"result of {self.site!r}")
        return self.latest().result()


class SimulatedGraph(Graph):
    """What was captured, in host order: each step with its stream (None: the replaying one)."""

    def __init__(self, device: Device, name: str) -> None:
        self.device = device
        self.name = name
        self.steps: list[tuple[Stream | None, Callable[[], object]]] = []
        self.is_complete = False

    def replay(self) -> None:
        """Queue everything again, on the same tensors, after the current stream's work so far."""
        if not self.is_complete:
            raise CaptureError(f"graph name={self.name!r} is not complete: its capture must end")
        origin = self.device.current_stream()
        for stream, queue_again in self.steps:
            with self.device.stream(origin if stream is None else stream):
                queue_again()


class Capture:
    """One capture in progress: its streams, how far each knows the others, and its events."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.graph = SimulatedGraph(device, name)
        self.error: CaptureError | None = None
        self._origin = device.current
        self._lanes: dict[Stream, Stream | None] = {self._origin: None}
        self._clocks: dict[Stream, dict[Stream, int]] = {self._origin: {}}
        self._points: dict[Event, tuple[Event, dict[Stream, int]]] = {}

    def takes(self, stream: Stream) -> bool:
        """Tell whether what is queued on `stream` is captured."""
        return stream in self._lanes

    def fail(self, error: CaptureError) -> CaptureError:
        """Remember what broke this capture, and return it."""
        self.error = self.error or error
        return error

    def add_launch(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        site: str,
    ) -> Captured:
        """Capture a launch on the current stream."""
        captured, device = Captured(self, site), self.device

        def queue_again() -> None:
            now = [arg.latest() if isinstance(arg, Captured) else arg for arg in args]
            work = device.launch(fn, *now, reads=reads, writes=writes, site=site)
            work.is_copy = captured.is_copy  # type: ignore[attr-defined]  # as poison marks it
            captured.work = work

        self._add_work(queue_again)
        return captured

    def add_copy(self, dst: torch.Tensor, src: Any, site: str) -> None:
        """Capture a copy on the current stream; what an instrument puts before it is captured."""
        device, copy_async = self.device, type(self.device).copy_async

        def queue_again() -> None:
            now = src.latest() if isinstance(src, Captured) else src
            copy_async(device, dst, now, site=site)

        self._add_work(queue_again)

    def add_record(self, event: Event, stream: Stream) -> None:
        """Capture a record; the graph records an event of its own."""
        own = self.device.new_event(event.name)
        self._points[event] = own, dict(self._clocks[stream])
        self.graph.steps.append((self._lanes[stream], own.record))

    def add_wait(self, event: Event, stream: Stream) -> None:
        """Capture a wait for an event of this capture; a stream outside joins the capture."""
        if stream not in self._lanes:
            self._lanes[stream] = self.device.new_stream(stream.name)
            self._clocks[stream] = {}
        own, known = self._points[event]
        clock = self._clocks[stream]
        for other, count in known.items():
            clock[other] = max(clock.get(other, 0), count)
        self.graph.steps.append((self._lanes[stream], own.wait))

    def end(self) -> None:
        """Complete the graph.

        Raises:
            CaptureError: A rule was broken inside, or a forked stream was not joined back.
        """
        if self.error is not None:
            raise CaptureError(f"capture {self.name!r} is invalid: {self.error}") from self.error
        known = self._clocks[self._origin]
        for stream, clock in self._clocks.items():
            if clock.get(stream, 0) > known.get(stream, 0):
                raise CaptureError(
                    f"capture {self.name!r} ended with unjoined work on stream {stream.name!r}: "
                    f"let stream {self._origin.name!r} wait for it first"
                )
        self._points.clear()
        self.graph.is_complete = True

    def _add_work(self, queue_again: Callable[[], None]) -> None:
        stream = self.device.current
        clock = self._clocks[stream]
        clock[stream] = clock.get(stream, 0) + 1
        self.graph.steps.append((self._lanes[stream], queue_again))


@contextmanager
def capturing(device: SimulatedDevice, name: str) -> Iterator[SimulatedGraph]:
    """Capture into a graph what is queued on the current stream, and on streams forked from it."""
    if device.capturing is not None:
        raise CaptureError(f"capture {name!r} inside capture {device.capturing.name!r}: end it")
    capture = device.capturing = Capture(device, name)
    try:
        yield capture.graph
    finally:
        device.capturing = None
    capture.end()


def is_captured_wait(event: SimulatedEvent, stream: Stream) -> bool:
    """Capture a wait if it belongs to the capture in progress, and tell whether it does.

    Raises:
        CaptureIsolationError: It would cross the boundary of a capture.
    """
    capture, recorded_in = event.device.capturing, event.recorded_in
    is_inside = capture is not None and capture.takes(stream)
    where = ""
    if recorded_in is not capture and recorded_in is not None:
        where = f"last recorded inside capture {recorded_in.name!r}, which ended"
    elif recorded_in is None and is_inside and event.is_recorded:
        where = "recorded outside"
    if where:
        within = f" in capture {capture.name!r}" if capture is not None and is_inside else ""
        error = CaptureIsolationError(
            f"stream {stream.name!r}{within} cannot wait for event {event.name!r}: {where}; "
            "record it again on this side of the capture"
        )
        raise capture.fail(error) if capture is not None and is_inside else error
    if capture is not None and recorded_in is capture:
        capture.add_wait(event, stream)
        return True
    return is_inside


def refuse_host_wait(device: SimulatedDevice, what: str, recorded_in: Capture | None = None) -> None:
    """Refuse to wait on the host inside a capture, or for an event of one.

    Raises:
        CaptureError: Always in these cases.
    """
    if device.capturing is not None and not device.is_running:
        raise device.capturing.fail(
            CaptureError(f"the host cannot wait for {what} inside capture {device.capturing.name!r}")
        )
    if recorded_in is not None:
        raise CaptureError(
            f"the host cannot wait for {what}: last recorded inside capture {recorded_in.name!r}"
        )
