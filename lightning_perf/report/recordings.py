"""Analyzes the traces of a run rank by rank: in this process, or in worker processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from lightning_perf.report.recording import Recording, analyze_recording
from lightning_perf.units import describe_left

LARGE_BYTES = 4 << 20
"""Files of this size and more are worth worker processes, which take a few tenths of a second to start."""

WORKER_BYTES = 100 << 20
TEXT_SHARE = 0.25
GZIP_SHARE = 4.0
"""Memory of a worker process: that of a small trace, and more for each byte of a plain or of a compressed file."""

FREE_SHARE = 0.75
"""Share of the free memory that all worker processes together may take."""

PROGRESS_S = 5.0


class RecordingExecutor(Protocol):
    """Analyzes the recordings of a run, as `analyze_recordings` does on this machine."""

    def __call__(self, groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
        """See `analyze_recordings`."""
        ...


def analyze_recordings(
    groups: Sequence[Sequence[Path]],
    *,
    by_shape: bool = False,
    jobs: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[Recording]:
    """Analyze the recordings of a run, as many at once as there are processors and memory.

    Args:
        jobs: Processes at once; by default one per processor that this process may use.
        on_progress: Called every few seconds with a line of progress, if there are several recordings.
    """
    sizes = [sum(map(_size, group)) for group in groups]
    large = sum(size >= LARGE_BYTES for size in sizes) if sys.executable and sys.platform != "win32" else 0
    if large:
        from lightning_perf.workers.limits import usable_cpus

        jobs = jobs or usable_cpus()
        workers = min(large, jobs, _fitting(groups))
    else:
        jobs = workers = 1  # small files take no longer than the start of a process
    progress = _Progress(sizes, on_progress)
    if workers > 1:
        from lightning_perf.report.workers import analyze_in_workers

        # The largest first, so that no core still has a large one at the end.
        order = sorted(range(len(groups)), key=lambda number: -sizes[number])
        return analyze_in_workers(
            groups, order, workers, by_shape=by_shape, processes=jobs // workers, on_result=progress.add
        )
    results = []
    for number, group in enumerate(groups):
        results.append(analyze_recording(group, by_shape=by_shape, processes=jobs))
        progress.add(number)
    return results


class _Progress:
    def __init__(self, sizes: Sequence[int], say: Callable[[str], None] | None) -> None:
        self._sizes, self._say = sizes, say
        self._begin_s = self._said_s = time.monotonic()
        self._number = self._bytes = 0

    def add(self, number: int) -> None:
        """Count a recording that was analyzed."""
        self._number += 1
        self._bytes += self._sizes[number]
        now_s, rest_bytes = time.monotonic(), sum(self._sizes) - self._bytes
        if self._say is not None and self._bytes and rest_bytes and now_s - self._said_s >= PROGRESS_S:
            self._said_s = now_s
            left = describe_left((now_s - self._begin_s) * rest_bytes / self._bytes)
            self._say(f"{self._number} of {len(self._sizes)} recordings analyzed, {left}")


def _fitting(groups: Sequence[Sequence[Path]]) -> int:
    """Return how many of the largest recordings fit into the free memory together."""
    from lightning_perf.workers.limits import free_bytes

    left = free_bytes() * FREE_SHARE
    if not left:
        return len(groups)  # unknown
    number = 0
    for need in sorted(map(_memory_bytes, groups), reverse=True):
        left -= need
        if left < 0:
            break
        number += 1
    return number


def _memory_bytes(group: Sequence[Path]) -> float:
    return WORKER_BYTES + sum(_size(path) * (GZIP_SHARE if path.suffix == ".gz" else TEXT_SHARE) for path in group)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will raise the error
