"""The recordings of a run: windows of the schedule with their cost, and captures outside it in folders of their own.

``windows.rank0.jsonl`` holds the windows, and ``captures.rank0.jsonl`` says why each capture was made.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from msgspec import Struct

from lightning_perf.run_files.jsonl import Count, RankLog

_FOLDER = re.compile(r"(?:slow-step|on-demand)-\d+")


class CaptureTrigger(Enum):
    """The event that triggered a capture."""

    SLOW_STEPS = "slow steps"
    SIGNAL = "signal"
    FILE = "file"


class Slowdown(Struct, frozen=True):
    """Consecutive steps that were slower than usual.

    Attributes:
        usual_ns: Median of the steps before them.
        limit_ns: The step time above which a step counted as slow.
        step_ns: The times of the slow steps, in order.
    """

    usual_ns: Count
    limit_ns: Count
    step_ns: tuple[Count, ...]


class CaptureRecord(Struct, frozen=True):
    """The reason for a capture.

    Attributes:
        folder: Its folder, next to this file, e.g. ``slow-step-120`` or ``on-demand-300``.
        step: The step after which it was triggered, the last of the slow ones.
        slowdown: How slow the steps were; None for a capture on demand.
    """

    folder: str
    trigger: CaptureTrigger
    step: Count
    slowdown: Slowdown | None = None


CAPTURES: RankLog[CaptureRecord] = RankLog(CaptureRecord, "captures", "record of a capture", restart=b'{"folder"')


def capture_name(trigger: CaptureTrigger, step: int) -> str:
    """Name the folder of a capture.

    Example:
        >>> capture_name(CaptureTrigger.SLOW_STEPS, 120), capture_name(CaptureTrigger.FILE, 300)
        ('slow-step-120', 'on-demand-300')
    """
    return f"{'slow-step' if trigger is CaptureTrigger.SLOW_STEPS else 'on-demand'}-{step}"


def is_capture_name(name: str) -> bool:
    """Return whether `capture_name` makes such a name.

    Example:
        >>> is_capture_name("slow-step-120"), is_capture_name("../slow-step-120")
        (True, False)
    """
    return _FOLDER.fullmatch(name) is not None


def is_capture_folder(folder: Path) -> bool:
    """Return whether a folder holds a capture: it has such a name, and a run has logged captures next to it."""
    return is_capture_name(folder.name) and bool(CAPTURES.paths(folder.parent))


class RecordedWindow(Struct, frozen=True):
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
