"""What came of the files of one process: its windows, read and analysed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec

from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.analysis.rank_times import RankTimes, rank_times
from lightning_perf.errors import TraceError
from lightning_perf.run_files.traces import rank_in_name
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace

__all__ = ["Recording", "analyze_recording", "decode_recording", "encode_recording"]


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


class _Message(msgspec.Struct):
    analyses: tuple[RankAnalysis, ...]
    times: tuple[RankTimes, ...]
    faults: list[tuple[str, str, str]]


def encode_recording(recording: Recording) -> bytes:
    """A recording for another process: JSON, without a newline."""
    faults = [(fault.path, fault.problem, fault.action) for fault in recording.faults]
    return msgspec.json.encode(_Message(recording.analyses, recording.times, faults))


def decode_recording(message: bytes) -> Recording:
    """What `encode_recording` encoded."""
    told = msgspec.json.decode(message, type=_Message)
    return Recording(told.analyses, told.times, tuple(TraceError(*fault) for fault in told.faults))
