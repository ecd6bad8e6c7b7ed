"""``windows.rank0.jsonl``: the cost of each window of the profiler to the run."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.run_files.jsonl import Count, RankLog

__all__ = ["WINDOWS", "RecordedWindow"]


@dataclass(frozen=True)
class RecordedWindow:
    """One window of the profiler: its steps, and its cost between them.

    Its cost within the steps is in the step samples of the same run.

    Attributes:
        capture: Folder of its capture; empty for a window of the schedule.
        first_step: First step in which the profiler ran, warm-up included.
        last_step: Last one.
        recorded_steps: Whole steps in its trace.
        pause_ns: Time in which training waited for the profiler to prepare, start and stop.
        export_ns: Time in which it waited for the trace to be written and packed.
        trace_bytes: Size of the trace file; 0 if none was written.
    """

    capture: str
    first_step: Count
    last_step: Count
    recorded_steps: Count
    pause_ns: Count
    export_ns: Count
    trace_bytes: Count


WINDOWS: RankLog[RecordedWindow] = RankLog(RecordedWindow, "windows", "record of a profiler window", restart=b"{")
