"""Device time of steps by events in the device's own stream: the host never waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["DeviceClock", "DeviceInterval", "TimingEvent"]


class TimingEvent(Protocol):
    """The part of `torch.cuda.Event` (with ``enable_timing=True``) that is used here."""

    def record(self) -> None:
        """Put the event into the current stream."""

    def query(self) -> bool:
        """Whether the stream has passed the event."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to `end_event`, both passed."""


@dataclass(frozen=True)
class DeviceInterval:
    """Two events in a stream, one at each end of a step."""

    begin: TimingEvent
    end: TimingEvent

    @property
    def done(self) -> bool:
        """Whether the device has passed the end; asking does not wait."""
        return self.end.query()

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
        capacity: Intervals in flight at most.
    """

    def __init__(self, new_event: Callable[[], TimingEvent], *, capacity: int = 64) -> None:
        self._new_event = new_event
        self._left = 2 * capacity
        self._free: list[TimingEvent] = []
        self._begin: TimingEvent | None = None

    def begin(self) -> None:
        """Mark the begin of an interval in the current stream."""
        self.cancel()
        if len(self._free) + self._left < 2:
            return
        self._begin = self._take()
        self._begin.record()

    def end(self) -> DeviceInterval | None:
        """Mark its end.

        Returns:
            The interval, to be read once it is done and given to `release` then; None where none was begun.
        """
        if self._begin is None:
            return None
        interval = DeviceInterval(self._begin, self._take())
        interval.end.record()
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
