"""Step windows: a step is one optimizer step, from its host mark to the end of the device work it launched."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.trace.columns import BoolArray, Int64Array, Trace

__all__ = ["Steps", "find_steps"]


@dataclass(frozen=True, eq=False)
class Steps:
    """The step windows of a trace, in time order; they never overlap.

    Attributes:
        number: The ``n`` of ``ProfilerStep#n``; 0 for the whole recording.
        start_ns: Begin of each window: the host mark's begin or the last window's end, whichever is later.
        end_ns: End of each window: the host mark's end or the end of the last device work launched in it.
        host_start_ns: Begin of the host's mark.
        host_end_ns: End of the host's mark.
        complete: False for a step cut off by an end of the recording; it is left out of averages.
        marked: False when the trace has no step marks and the one window is the whole recording.
        thread: Code into `Trace.threads` of the training thread (the marks' thread, or the busiest one).
    """

    number: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    host_start_ns: Int64Array
    host_end_ns: Int64Array
    complete: BoolArray
    marked: bool
    thread: int

    def __len__(self) -> int:
        return len(self.start_ns)


def find_steps(trace: Trace) -> Steps:
    """Find the step windows of a trace."""
    raise NotImplementedError
