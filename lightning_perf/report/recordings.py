"""Read and analyse the recordings of a run, several large ones at once in processes of their own."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from lightning_perf.report.recording import Recording, analyze_recording
from lightning_perf.report.recording_worker import RecordingWorker

__all__ = ["RecordingExecutor", "analyze_recordings"]

LARGE_BYTES = 4 << 20
"""Files of a recording from here on are worth further processes, which take a few tenths of a second to start."""


class RecordingExecutor(Protocol):
    """Analyses the recordings of a run, as `analyze_recordings` does on this machine."""

    def __call__(self, groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
        """See `analyze_recordings`."""
        ...


def analyze_recordings(groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
    """Analyse the recordings of a run, as many at once as there are cores.

    Args:
        groups: The files of each process.
        by_shape: Whether operators are told apart by the shapes of their inputs.

    Returns:
        One result a group, in their order.
    """
    sizes = [sum(map(_size, group)) for group in groups]
    workers = min(sum(size >= LARGE_BYTES for size in sizes), _cores())
    if workers < 2 or not sys.executable:
        return [analyze_recording(group, by_shape=by_shape) for group in groups]
    # The largest first, so that no core is left with a large one at the end.
    waiting = deque(sorted(range(len(groups)), key=lambda number: -sizes[number]))
    results: dict[int, Recording] = {}

    def work() -> None:
        with RecordingWorker(by_shape=by_shape) as worker:
            while waiting:
                try:
                    number = waiting.popleft()
                except IndexError:  # another was quicker
                    return
                results[number] = worker.analyze(groups[number])

    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(work) for _ in range(workers)]:
                future.result()
        finally:
            waiting.clear()
    return [results[number] for number in range(len(groups))]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will tell what is wrong
