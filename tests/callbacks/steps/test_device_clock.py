"""The ring of device events, with a device made of a counter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from lightning_perf.callbacks.steps.step_timer import DeviceClock, cuda_clock


@dataclass
class FakeDevice:
    """Passes recorded events only when told to; each takes 1.5 ms after the one before."""

    passed: int = 0
    recorded: int = 0
    made: list[FakeEvent] = field(default_factory=list)

    def new_event(self) -> FakeEvent:
        self.made.append(FakeEvent(self))
        return self.made[-1]

    def clock(self, **options: int) -> DeviceClock:
        return DeviceClock(self.new_event, lambda: self, **options)


@dataclass
class FakeEvent:
    device: FakeDevice
    place: int = -1

    def record(self, stream: Any) -> None:
        assert stream is self.device
        self.device.recorded += 1
        self.place = self.device.recorded

    def query(self) -> bool:
        return self.place <= self.device.passed

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self.query()
        assert end_event.query(), "asked for a time that would make the host wait"
        return 1.5 * (end_event.place - self.place)


def test_an_interval_is_read_once_the_device_has_passed_it() -> None:
    device = FakeDevice()
    clock = device.clock()
    clock.begin()
    interval = clock.end()
    assert interval is not None
    assert not interval.done
    device.passed = 1
    assert not interval.done
    device.passed = 2
    assert interval.done
    assert interval.elapsed_ns == 1_500_000


def test_events_are_used_again() -> None:
    device = FakeDevice(passed=10**6)
    clock = device.clock(capacity=4)
    for _ in range(100):
        clock.begin()
        interval = clock.end()
        assert interval is not None
        clock.release(interval)
    assert len(device.made) == 2


def test_with_all_events_in_flight_nothing_is_measured() -> None:
    device = FakeDevice()
    clock = device.clock(capacity=2)
    intervals = []
    for _ in range(5):
        clock.begin()
        intervals.append(clock.end())
    assert [interval is not None for interval in intervals] == [True, True, False, False, False]
    device.passed = 10**6
    clock.release(intervals[0])
    clock.begin()
    assert clock.end() is not None


def test_a_cancelled_interval_gives_its_event_back() -> None:
    device = FakeDevice()
    clock = device.clock(capacity=1)
    for _ in range(10):
        clock.begin()
        clock.cancel()
    assert clock.end() is None
    clock.begin()
    assert clock.end() is not None
    assert len(device.made) == 2


def test_an_end_that_overtook_its_begin_in_another_stream_is_waited_for() -> None:
    device = FakeDevice(passed=10**6)
    clock = device.clock()
    clock.begin()
    interval = clock.end()
    assert interval is not None
    interval.begin.place = 10**6 + 1
    assert not interval.done
    device.passed += 1
    assert interval.done


def test_on_cuda_events_go_into_the_stream_of_the_runs_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", "stream of {}".format)
    clock = cuda_clock(torch.device("cuda", 3))
    clock.begin()
    assert clock.end() is not None
    assert recorded == ["stream of cuda:3"] * 2
