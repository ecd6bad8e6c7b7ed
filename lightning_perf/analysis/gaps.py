"""Gaps: the stretches of the averaged steps in which no device works, and what the host did in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_perf.analysis.categories import host_sets
from lightning_perf.analysis.intervals import Intervals, exclusive_ns, merge, subtract
from lightning_perf.analysis.once import once_per_trace
from lightning_perf.analysis.windows import averaged_steps
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.trace import Trace

__all__ = ["GAP_CLASSES", "Gaps", "device_busy", "find_gaps", "queued_work"]

GAP_CLASSES = (
    "kernel_gap",
    "input",
    "kernel_launch",
    "runtime_sync",
    "runtime_alloc",
    "runtime_other",
    "host_compute",
    "host_other",
)
"""What a device waits for, the first in priority first. In a ``kernel_gap`` work stands in the queue and has not
started: the host is not at fault. The others are the host's categories of the breakdown."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """The device-idle gaps of the averaged steps, in time order; one that spans two steps is cut in two.

    Attributes:
        start_ns: Begins.
        end_ns: Ends.
        parts_ns: For each of `GAP_CLASSES`, how much of each gap it has; for every gap they sum to its length.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    parts_ns: dict[str, Int64Array]

    def __len__(self) -> int:
        return len(self.start_ns)


@once_per_trace
def device_busy(trace: Trace) -> Intervals:
    """When any device works."""
    return merge(trace.device.start_ns, trace.device.end_ns)


def queued_work(trace: Trace) -> Intervals:
    """When work stands in a device queue: its launch call has returned, and it has not started."""
    rows = trace.links.device_runtime
    linked = rows >= 0
    return merge(trace.runtime.end_ns[rows[linked]], trace.device.start_ns[linked])


@once_per_trace
def find_gaps(trace: Trace) -> Gaps:
    """Find the gaps and divide each among the classes: at each instant the first active class has the time."""
    averaged = averaged_steps(trace) & (trace.steps.end_ns > trace.steps.start_ns)
    # Steps may touch; kept apart here, so that no gap belongs to two.
    steps = Intervals(trace.steps.start_ns[averaged], trace.steps.end_ns[averaged])
    idle = subtract(steps, device_busy(trace))

    def sets() -> Iterator[Intervals]:
        yield queued_work(trace)
        for _, active in host_sets(trace):
            yield active

    lengths = exclusive_ns(sets(), idle.start_ns, idle.end_ns)
    return Gaps(idle.start_ns, idle.end_ns, dict(zip(GAP_CLASSES, lengths, strict=True)))
