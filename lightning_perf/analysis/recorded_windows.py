"""What the profiler did to a run: one line a window, in ``windows.rank0.jsonl``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from lightning_perf.analysis.json_lines import read_json_lines

__all__ = ["RecordedWindow", "encode_window", "read_windows"]

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True)
class RecordedWindow:
    """One window: the steps in which the profiler ran, and what that cost between them.

    What it costs inside the steps shows in the step samples of the same run.

    Attributes:
        capture: Folder of the capture that it belongs to; empty for a window of the schedule.
        first_step: First step in which the profiler ran, warm-up included.
        last_step: Last one.
        recorded_steps: Whole steps in its trace.
        pause_ns: Time in which training waited for the profiler to prepare, start and stop.
        export_ns: Time in which it waited for the trace to be written and packed.
        trace_bytes: Size of the trace file; 0 when none was written.
    """

    capture: str
    first_step: _Count
    last_step: _Count
    recorded_steps: _Count
    pause_ns: _Count
    export_ns: _Count
    trace_bytes: _Count


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RecordedWindow)


def encode_window(window: RecordedWindow) -> bytes:
    r"""Encode a window as one line of a ``windows.rank0.jsonl`` file.

    Example:
        >>> encode_window(RecordedWindow("", 10, 17, 5, 9, 8, 7))[:34]
        b'{"capture":"","first_step":10,"las'
    """
    return _encoder.encode(window) + b"\n"


def read_windows(path: str | Path) -> tuple[RecordedWindow, ...]:
    """Read the windows of one rank.

    Args:
        path: A ``windows.rank0.jsonl`` file.

    Raises:
        TraceError: The file cannot be read, or a line within it is no window.
    """
    return read_json_lines(path, _decoder.decode, what="record of a profiler window", restart=b"{")
