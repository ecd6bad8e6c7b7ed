"""Analyzes the traces of a run rank by rank: in this process, or in worker processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lightning_perf.report.recording import Recording, analyze_recording

LARGE_BYTES = 4 << 20
"""Files of this size and more are worth worker processes, which take a few tenths of a second to start."""


class RecordingExecutor(Protocol):
    """Analyzes the recordings of a run, as `analyze_recordings` does on this machine."""

    def __call__(self, groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
        """See `analyze_recordings`."""
        ...


def analyze_recordings(groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
    """Analyze the recordings of a run, as many at once as there are cores."""
    sizes = [sum(map(_size, group)) for group in groups]
    workers = min(sum(size >= LARGE_BYTES for size in sizes), _cores())
    if workers < 2 or not sys.executable:
        return [analyze_recording(group, by_shape=by_shape) for group in groups]
    from lightning_perf.report.workers import analyze_in_workers

    # The largest first, so that no core still has a large one at the end.
    order = sorted(range(len(groups)), key=lambda number: -sizes[number])
    return analyze_in_workers(groups, order, workers, by_shape=by_shape)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will raise the error
