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
from .isolation import CaptureError, refuse_host_wait

if TYPE_CHECKING:
    from .simulated import SimulatedDevice


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

    def reset(self) -> None:
        """Let go of what was captured."""
        self.steps.clear()
        self.is_complete = False


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
