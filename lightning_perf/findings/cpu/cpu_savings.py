"""Helpers of the rules for trainings on a processor: operators by kind, and their share of the step."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_perf.analysis.host.host_compute import HostCompute, HostKind, HostWork, Layout
from lightning_perf.analysis.rank import RankAnalysis

__all__ = ["host_saving_ns", "rows", "time_ns"]


def rows(
    compute: HostCompute, *kinds: HostKind, arithmetic: str | None = None, layout: Layout | None = None
) -> tuple[HostWork, ...]:
    """Return the operators of some kinds.

    Args:
        compute: The training.
        kinds: The kinds of operators.
        arithmetic: Only those in this arithmetic.
        layout: Only those in this layout.
    """
    return tuple(
        row
        for row in compute.work
        if row.kind in kinds and arithmetic in (None, row.arithmetic) and layout in (None, row.layout)
    )


def time_ns(found: Iterable[HostWork], compute: HostCompute) -> float:
    """Return the mean time of operators in nanoseconds per step."""
    return sum(row.time_ns for row in found) / compute.steps


def host_saving_ns(analysis: RankAnalysis, least_ns: float, most_ns: float) -> tuple[float, float]:
    """Return the step time that faster operators save.

    Args:
        analysis: The rank.
        least_ns: Least operator time saved per step, summed over threads.
        most_ns: Most operator time saved per step.

    Returns:
        Least and most saving in nanoseconds per step. It is smaller if operators of several threads overlap.
    """
    compute = analysis.host_compute
    busy_ns = analysis.breakdown.category("host_compute").mean_ns or 0.0
    if compute is None or not compute.operator_ns:
        return 0.0, 0.0
    factor = min(1.0, busy_ns / (compute.operator_ns / compute.steps))
    return least_ns * factor, most_ns * factor
