"""What rules need to know of a training that computes on the processor."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_perf.analysis.host.host_compute import HostCompute, HostKind, HostWork, Layout
from lightning_perf.analysis.rank import RankAnalysis

__all__ = ["host_saving_ns", "rows", "time_ns"]


def rows(
    compute: HostCompute, *kinds: HostKind, arithmetic: str | None = None, layout: Layout | None = None
) -> tuple[HostWork, ...]:
    """The operators of some kinds.

    Args:
        compute: The training.
        kinds: The kinds.
        arithmetic: Only those in this arithmetic.
        layout: Only those in this layout.
    """
    return tuple(
        row
        for row in compute.work
        if row.kind in kinds and arithmetic in (None, row.arithmetic) and layout in (None, row.layout)
    )


def time_ns(found: Iterable[HostWork], compute: HostCompute) -> float:
    """Mean time a step of `rows`."""
    return sum(row.time_ns for row in found) / compute.steps


def host_saving_ns(analysis: RankAnalysis, least_ns: float, most_ns: float) -> tuple[float, float]:
    """The step time won when operators take less time.

    Args:
        analysis: The rank.
        least_ns: Least operator time saved a step, summed over threads.
        most_ns: Most.

    Returns:
        Least and most saving, nanoseconds a step: less where operators of several threads overlap.
    """
    compute = analysis.host_compute
    busy_ns = analysis.breakdown.category("host_compute").mean_ns or 0.0
    if compute is None or not compute.operator_ns:
        return 0.0, 0.0
    factor = min(1.0, busy_ns / (compute.operator_ns / compute.steps))
    return least_ns * factor, most_ns * factor
