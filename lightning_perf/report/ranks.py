"""Read and analyse the recordings of a run, several large ones at once in processes of their own.

A worker is a fresh interpreter that is told what to read on its standard input and answers in JSON: unlike a pool of
``multiprocessing`` it never imports the caller's main module again, which in a training script would start training.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec

from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.analysis.rank_times import RankTimes, rank_times
from lightning_perf.report.sources import rank_in_name
from lightning_perf.trace.columns import Trace
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.errors import TraceError
from lightning_perf.trace.reader import read_trace

__all__ = ["Recording", "analyze_recordings"]

LARGE_BYTES = 4 << 20
"""Files of a recording from here on are worth a process of their own, which takes a few tenths of a second to start."""


@dataclass(frozen=True)
class Recording:
    """What came of the files of one process.

    Attributes:
        analyses: One analysis of all windows together, or one a file where the files overlap in time and so cannot be
            windows of one process; none when no file could be read.
        times: What the comparison of ranks needs, one for each analysis whose rank is known.
        faults: One for each file that could not be read.
    """

    analyses: tuple[RankAnalysis, ...]
    times: tuple[RankTimes, ...]
    faults: tuple[TraceError, ...]


def analyze_recordings(groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
    """Analyse the recordings of a run.

    Args:
        groups: The files of each process.
        by_shape: Whether operators are told apart by the shapes of their inputs.

    Returns:
        One result a group, in their order.
    """
    large = [group for group in groups if sum(_size(path) for path in group) >= LARGE_BYTES]
    workers = min(len(large), os.cpu_count() or 1)
    if workers < 2 or not sys.executable:
        return [analyze_recording(group, by_shape=by_shape) for group in groups]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda group: _in_worker(group, by_shape), groups))


def analyze_recording(paths: Sequence[Path], *, by_shape: bool = False) -> Recording:
    """Read the windows of one process, and analyse them together."""
    traces: list[Trace] = []
    faults: list[TraceError] = []
    for path in paths:
        try:
            traces.append(read_trace(path))
        except TraceError as fault:  # noqa: PERF203  (one file must not cost the others)
            faults.append(fault)
    parts = [concatenate(traces)] if traces and not _overlap(traces) else traces
    analyses = tuple(_analyze(part, by_shape) for part in parts)
    times = tuple(
        rank_times(part, analysis.breakdown, analysis.rank)
        for part, analysis in zip(parts, analyses, strict=True)
        if analysis.rank is not None
    )
    return Recording(analyses, times, tuple(faults))


def _analyze(trace: Trace, by_shape: bool) -> RankAnalysis:
    analysis = analyze_rank(trace, by_shape=by_shape)
    if analysis.rank is not None:
        return analysis
    return replace(analysis, rank=rank_in_name(Path(trace.sources[0]).name))


def _overlap(traces: Sequence[Trace]) -> bool:
    spans = sorted((trace.begin_ns, trace.end_ns) for trace in traces)
    return any(begin < end for (_, end), (begin, _) in pairwise(spans))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will tell what is wrong


class _Task(msgspec.Struct):
    paths: list[str]
    by_shape: bool


class _Answer(msgspec.Struct):
    analyses: tuple[RankAnalysis, ...]
    times: tuple[RankTimes, ...]
    faults: list[tuple[str, str, str]]


def _in_worker(paths: Sequence[Path], by_shape: bool) -> Recording:
    package_root = str(Path(__file__).parents[2])
    search = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", "from lightning_perf.report.ranks import serve; serve()"],
        input=msgspec.json.encode(_Task([str(path) for path in paths], by_shape)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": search},
        check=False,
    )
    if done.returncode != 0:  # killed, or no interpreter to be had: here it either works or says what is wrong
        return analyze_recording(paths, by_shape=by_shape)
    answer = msgspec.json.decode(done.stdout, type=_Answer)
    return Recording(answer.analyses, answer.times, tuple(TraceError(*fault) for fault in answer.faults))


def serve() -> None:
    """Be a worker: read one task from standard input, and write the answer to standard output."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    result = analyze_recording([Path(path) for path in task.paths], by_shape=task.by_shape)
    faults = [(fault.path, fault.problem, fault.action) for fault in result.faults]
    sys.stdout.buffer.write(msgspec.json.encode(_Answer(result.analyses, result.times, faults)))
