"""The peak of a training's device memory, with a stand-in for the statistics of torch's allocator."""

from __future__ import annotations

import pytest
import torch

from lightning_perf.callbacks.peak_memory import end_peak, own_memory, restart_peak, start_peak

GPU = torch.device("cuda", 0)


class Allocator:
    """Bytes that are allocated now, and the most since the last reset."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def hold(self, size: int) -> None:
        """Allocate, or with a negative size free."""
        self.now += size
        self.most = max(self.most, self.now)

    def reset(self, _: torch.device) -> None:
        """Forget the most so far."""
        self.most = self.now


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: made.most)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", made.reset)
    return made


@pytest.mark.parametrize(("before", "after", "peak"), [(100, 60, 100), (60, 100, 100)])
def test_the_peak_leaves_out_passes_of_this_package(allocator: Allocator, before: int, after: int, peak: int) -> None:
    allocator.hold(500)
    allocator.hold(-500)  # an earlier training of the process
    start_peak(GPU)
    allocator.hold(before)
    allocator.hold(-before)
    with own_memory(GPU):
        allocator.hold(300)
        allocator.hold(-300)
    allocator.hold(after)
    allocator.hold(-after)
    assert end_peak(GPU) == peak


def test_what_is_held_until_a_restart_is_left_out(allocator: Allocator) -> None:
    start_peak(GPU)
    allocator.hold(700)
    allocator.hold(-600)
    restart_peak(GPU)
    allocator.hold(50)
    assert end_peak(GPU) == 150


def test_without_a_record_the_statistics_are_the_users(allocator: Allocator) -> None:
    allocator.hold(100)
    with own_memory(GPU):
        allocator.hold(300)
        allocator.hold(-300)
    restart_peak(GPU)
    assert allocator.most == 400


def test_a_processor_has_no_such_peak() -> None:
    start_peak(torch.device("cpu"))
    with own_memory(torch.device("cpu")):
        pass
    assert end_peak(torch.device("cpu")) is None
