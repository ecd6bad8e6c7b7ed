"""Analyzes the traces of a run rank by rank: in this process, in worker processes, or elsewhere."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec

from lightning_perf.analysis.core.averaged_steps import without_tails
from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.analysis.ranks.distributed import RankTimes, rank_times
from lightning_perf.errors import TraceError
from lightning_perf.run_files.traces import rank_in_name
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.process import WorkerError, WorkerExitError, WorkerProcess, wait_for_messages


@dataclass(frozen=True)
class Recording:
    """The analyses of the files of one process.

    Attributes:
        analyses: One analysis of all windows together. If the files overlap in time, they cannot be windows of one
            process, and each has an analysis of its own. Empty if no file could be read.
        times: The input for the comparison of ranks, one for each analysis with a known rank.
        errors: One for each file that could not be read.
    """

    analyses: tuple[RankAnalysis, ...]
    times: tuple[RankTimes, ...]
    errors: tuple[TraceError, ...]


def analyze_recording(paths: Sequence[Path], *, by_shape: bool = False) -> Recording:
    """Read the windows of one process, and analyze them together."""
    traces: list[Trace] = []
    errors: list[TraceError] = []
    for path in paths:
        try:
            traces.append(read_trace(path))
        except TraceError as error:  # noqa: PERF203  (one file must not cost the others)
            errors.append(error)
    parts = [concatenate(traces)] if traces and not _overlap(traces) else traces
    analyses = tuple(_analyze(part, by_shape) for part in parts)
    times = tuple(
        rank_times(without_tails(part), analysis.breakdown, analysis.rank)
        for part, analysis in zip(parts, analyses, strict=True)
        if analysis.rank is not None
    )
    return Recording(analyses, times, tuple(errors))


def _analyze(trace: Trace, by_shape: bool) -> RankAnalysis:
    analysis = analyze_rank(trace, by_shape=by_shape)
    if analysis.rank is not None:
        return analysis
    return replace(analysis, rank=rank_in_name(Path(trace.sources[0]).name))


def _overlap(traces: Sequence[Trace]) -> bool:
    spans = sorted((trace.begin_ns, trace.end_ns) for trace in traces)
    return any(begin < end for (_, end), (begin, _) in pairwise(spans))


class _Message(msgspec.Struct):
    analyses: tuple[RankAnalysis, ...]
    times: tuple[RankTimes, ...]
    errors: list[tuple[str, str, str]]


def encode_recording(recording: Recording) -> bytes:
    """Encode a recording for another process, as JSON without a newline."""
    errors = [(error.where, error.problem, error.action) for error in recording.errors]
    return msgspec.json.encode(_Message(recording.analyses, recording.times, errors))


def decode_recording(message: bytes) -> Recording:
    """Decode the output of `encode_recording`."""
    told = msgspec.json.decode(message, type=_Message)
    return Recording(told.analyses, told.times, tuple(TraceError(*error) for error in told.errors))


class Analyze(Message, frozen=True):
    """Asks a worker to read the files of one process and to analyze them together."""

    paths: tuple[str, ...]
    by_shape: bool


class Analyzed(Message, frozen=True):
    """The result, as `encode_recording` writes it."""

    recording: bytes


def main(channel: Channel) -> None:
    """Analyze recordings until the supervisor asks to stop."""
    while True:
        task = channel.receive(Analyze)
        recording = analyze_recording([Path(path) for path in task.paths], by_shape=task.by_shape)
        channel.send(Analyzed(encode_recording(recording)))


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
    # The largest first, so that no core still has a large one at the end.
    waiting = deque(sorted(range(len(groups)), key=lambda number: -sizes[number]))
    results: dict[int, Recording] = {}
    running: dict[WorkerProcess, int] = {}
    idle: list[WorkerProcess | None] = [None] * workers  # None for one that is not yet started
    with ExitStack() as stack:
        while waiting or running:
            while waiting and idle:
                worker, number = idle.pop(), waiting.popleft()
                task = Analyze(tuple(map(str, groups[number])), by_shape)
                try:
                    if worker is None:
                        worker = stack.enter_context(WorkerProcess("lightning_perf.report.recordings:main", task))
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
    """Analyze a recording after its worker process failed. Here it either succeeds or raises the real error."""
    if isinstance(error, WorkerExitError) and error.code == -signal.SIGINT:
        raise KeyboardInterrupt from error
    return analyze_recording(paths, by_shape=by_shape)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will raise the error
