"""Everything that is known of one rank: the values of all analyses of its trace."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.analysis.arithmetic import Arithmetic, arithmetic
from lightning_perf.analysis.breakdown import Breakdown, breakdown
from lightning_perf.analysis.loading import Loading, loading
from lightning_perf.analysis.operators import OperatorTable, operators
from lightning_perf.analysis.phases import Phases, phases
from lightning_perf.trace.columns import Metadata, Problems, Trace

__all__ = ["RankAnalysis", "analyze_rank"]


@dataclass(frozen=True)
class RankAnalysis:
    """One rank's analyses. A section that the recording cannot support is ``None``.

    Attributes:
        rank: The rank, ``None`` where neither the recording nor its file name tells.
        sources: The files it was read from.
        metadata: What the recording says about itself.
        problems: What was wrong with its files.
        recording_ns: From the first event to the end of the last.
        breakdown: Step time by category.
        phases: Step time by phase and category.
        loading: How batches are fetched and moved.
        arithmetic: Device compute time by arithmetic.
        operators: Operators by cost.
    """

    rank: int | None
    sources: tuple[str, ...]
    metadata: Metadata
    problems: Problems
    recording_ns: int
    breakdown: Breakdown
    phases: Phases
    loading: Loading | None
    arithmetic: Arithmetic | None
    operators: OperatorTable | None


def analyze_rank(trace: Trace, *, by_shape: bool = False) -> RankAnalysis:
    """Analyse one rank's recording.

    Args:
        trace: The recording; several windows of a rank are concatenated first.
        by_shape: Whether operators are told apart by the shapes of their inputs.

    Returns:
        The values of all analyses.
    """
    return RankAnalysis(
        rank=trace.metadata.rank,
        sources=trace.sources,
        metadata=trace.metadata,
        problems=trace.problems,
        recording_ns=trace.end_ns - trace.begin_ns,
        breakdown=breakdown(trace),
        phases=phases(trace),
        loading=loading(trace),
        arithmetic=arithmetic(trace) if trace.device.is_compute.any() else None,
        operators=operators(trace, by_shape) if len(trace.operators) else None,
    )
