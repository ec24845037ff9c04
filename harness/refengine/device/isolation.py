"""What may not cross the boundary of a capture: waits of streams for events, and host waits.

The rules are those seen on an H200 with CUDA 13: an event recorded outside is an isolation error
inside, one never recorded is no wait, one of an ended capture is refused by every wait and query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Stream

if TYPE_CHECKING:
    from .capture import Capture
    from .queue import SimulatedEvent
    from .simulated import SimulatedDevice


class CaptureError(RuntimeError):
    """Something that a capture does not allow; the capture it happened in is lost."""


class CaptureIsolationError(CaptureError):
    """A wait would cross the boundary of a capture."""


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


def refuse_host_wait(
    device: SimulatedDevice, what: str, recorded_in: Capture | None = None
) -> None:
    """Refuse to wait on the host inside a capture, or for an event of one.

    Raises:
        CaptureError: Always in these cases.
    """
    capture = device.capturing
    if capture is not None and not device.is_running:
        error = f"the host cannot wait for {what} inside capture {capture.name!r}"
        raise capture.fail(CaptureError(error))
    if recorded_in is not None:
        raise CaptureError(
            f"the host cannot wait for {what}: last recorded inside capture {recorded_in.name!r}"
        )
