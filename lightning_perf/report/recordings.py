"""Read and analyse the recordings of a run, several large ones at once in processes of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from lightning_perf.report.recording import Recording, analyze_recording, decode_recording
from lightning_perf.report.recording_worker import Analyze, Analyzed
from lightning_perf.workers.process import WorkerError, WorkerExitError, WorkerProcess, wait_for_messages

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
    running: dict[WorkerProcess, int] = {}
    idle: list[WorkerProcess | None] = [None] * workers  # None for one that has to be started
    with ExitStack() as stack:
        while waiting or running:
            while waiting and idle:
                worker, number = idle.pop(), waiting.popleft()
                task = Analyze(tuple(map(str, groups[number])), by_shape)
                try:
                    if worker is None:
                        worker = stack.enter_context(WorkerProcess("lightning_perf.report.recording_worker:main", task))
                    else:
                        worker.send(task)
                    running[worker] = number
                except WorkerError as error:
                    results[number] = _analyze_here(groups[number], by_shape, error)
                    idle.append(None)
            for worker in wait_for_messages(running):
                number = running.pop(worker)
                try:
                    results[number] = decode_recording(worker.receive(Analyzed).recording)
                    idle.append(worker)
                except WorkerError as error:
                    results[number] = _analyze_here(groups[number], by_shape, error)
                    idle.append(None)
    return [results[number] for number in range(len(groups))]


def _analyze_here(paths: Sequence[Path], by_shape: bool, error: WorkerError) -> Recording:
    """Analyse a recording whose worker process has failed: here it either works or raises what is wrong.

    Raises:
        KeyboardInterrupt: The worker process was interrupted.
    """
    if isinstance(error, WorkerExitError) and error.code == -signal.SIGINT:
        raise KeyboardInterrupt from error
    return analyze_recording(paths, by_shape=by_shape)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will tell what is wrong
