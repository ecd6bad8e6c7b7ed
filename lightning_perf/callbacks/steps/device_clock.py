"""Device time of steps by events in the device's own stream: the host never waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

__all__ = ["DeviceClock", "DeviceInterval", "TimingEvent", "cuda_clock"]


class TimingEvent(Protocol):
    """The part of `torch.cuda.Event` (with ``enable_timing=True``) that is used here."""

    def record(self, stream: Any, /) -> None:
        """Put the event into a stream."""

    def query(self) -> bool:
        """Whether the stream has passed the event."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to `end_event`, both passed."""


@dataclass(frozen=True)
class DeviceInterval:
    """Two events of a device, one at each end of a step."""

    begin: TimingEvent
    end: TimingEvent

    @property
    def done(self) -> bool:
        """Whether the device has passed both ends, which may lie in two streams; asking does not wait."""
        return self.end.query() and self.begin.query()

    @property
    def elapsed_ns(self) -> int:
        """Device time from begin to end, in nanoseconds. Ask only when `done`."""
        return round(self.begin.elapsed_time(self.end) * 1e6)


class DeviceClock:
    """A ring of timing events, reused once they were read.

    When the device lags so far behind that all events are in flight, an interval is not measured rather than waited
    for.

    Args:
        new_event: Makes an event.
        stream: Gives the run's device's current stream: the process may have turned to another device by then, and
            events of two devices have no time between them.
        capacity: Intervals in flight at most.
    """

    def __init__(self, new_event: Callable[[], TimingEvent], stream: Callable[[], Any], *, capacity: int = 64) -> None:
        self._new_event = new_event
        self._stream = stream
        self._left = 2 * capacity
        self._free: list[TimingEvent] = []
        self._begin: TimingEvent | None = None

    def begin(self) -> None:
        """Mark the begin of an interval in the current stream."""
        self.cancel()
        if len(self._free) + self._left < 2:
            return
        self._begin = self._take()
        self._begin.record(self._stream())

    def end(self) -> DeviceInterval | None:
        """Mark its end.

        Returns:
            The interval, to be read once it is done and given to `release` then; None where none was begun.
        """
        if self._begin is None:
            return None
        interval = DeviceInterval(self._begin, self._take())
        interval.end.record(self._stream())
        self._begin = None
        return interval

    def cancel(self) -> None:
        """Forget the interval that was begun."""
        if self._begin is not None:
            self._free.append(self._begin)
            self._begin = None

    def release(self, interval: DeviceInterval) -> None:
        """Take an interval's events back."""
        self._free += (interval.begin, interval.end)

    def _take(self) -> TimingEvent:
        if self._free:
            return self._free.pop()
        self._left -= 1
        return self._new_event()


def cuda_clock(device: torch.device) -> DeviceClock:
    """A clock for a CUDA (or ROCm) device.

    Args:
        device: The run's device.
    """

    def new_event() -> TimingEvent:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    return DeviceClock(new_event, lambda: torch.cuda.current_stream(device))
