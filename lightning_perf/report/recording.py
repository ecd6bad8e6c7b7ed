"""Analyzes the traces of one process: reads its windows, and analyzes them together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.intervals import without_tails
from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.analysis.ranks.distributed import RankTimes, rank_times
from lightning_perf.errors import TraceError
from lightning_perf.run_files.traces import rank_in_name
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace


class Recording(Struct, frozen=True):
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


def analyze_recording(paths: Sequence[Path], *, by_shape: bool = False, processes: int = 1) -> Recording:
    """Read the windows of one process, and analyze them together.

    Args:
        processes: Worker processes that share the decoding of a large file.
    """
    traces: list[Trace] = []
    errors: list[TraceError] = []
    for path in paths:
        try:
            traces.append(read_trace(path, processes=processes))
        except TraceError as error:  # noqa: PERF203  (one file must not cost the others)
            errors.append(error)
    spans = sorted((trace.begin_ns, trace.end_ns) for trace in traces)
    overlap = any(begin < end for (_, end), (begin, _) in pairwise(spans))
    parts = [concatenate(traces)] if traces and not overlap else traces
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
