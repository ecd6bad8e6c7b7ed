"""The facts of one rank for the comparison of ranks, small enough to pass between processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.ranks.collective_names import is_host_collective
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.trace.columns import NO_ROW
from lightning_perf.trace.trace import Trace

COLLECTIVES_KEPT = 4096
"""Collectives of a rank that are kept, the earliest ones. They suffice to see which rank waits for which."""


@dataclass(frozen=True)
class CollectiveCall:
    """One collective on one rank.

    Attributes:
        name: The collective as recorded, or its kernel.
        group: Process group; empty if not recorded.
        duration_ns: Time from the rank's arrival to the end: the wait for the others, then the transfer.
    """

    step: int
    name: str
    group: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class RankTimes:
    """One rank's times, as means over its averaged steps.

    Attributes:
        world_size: Ranks in the run, as this one recorded; None if not recorded.
        hostname: Its host; None if not recorded.
        categories_ns: Time by top category of the breakdown, as pairs of name and time.
        collectives: Its collectives in time order: those on the device, or else those on the host.
        truncated: Whether its file ends early. Its device times are then lower bounds.
        first_step: Number of the first averaged step; None if the recording marks none.
        begin_ns: Start of that step, on the recording's clock.
    """

    rank: int
    world_size: int | None
    hostname: str | None
    steps: int
    step_ns: float
    categories_ns: tuple[tuple[str, float], ...]
    collectives: tuple[CollectiveCall, ...]
    truncated: bool
    first_step: int | None = None
    begin_ns: int | None = None


def rank_times(trace: Trace, breakdown: Breakdown, rank: int) -> RankTimes:
    """Extract the facts for the comparison of ranks.

    Args:
        rank: Its number, which a recording does not always contain.
    """
    averaged = np.flatnonzero(averaged_steps(trace) & trace.steps.marked)
    return RankTimes(
        rank=rank,
        world_size=trace.metadata.world_size,
        hostname=trace.metadata.hostname,
        steps=breakdown.averaged_steps,
        step_ns=breakdown.wall.mean_ns or 0.0,
        categories_ns=tuple(
            (row.name, row.mean_ns) for row in breakdown.categories if row.parent is None and row.mean_ns is not None
        ),
        collectives=_on_device(trace) or _on_host(trace),
        truncated=trace.problems.lacks_work,
        first_step=int(trace.steps.number[averaged[0]]) if len(averaged) else None,
        begin_ns=int(trace.steps.start_ns[averaged[0]]) if len(averaged) else None,
    )


def _on_device(trace: Trace) -> tuple[CollectiveCall, ...]:
    device, table, steps = trace.device, trace.collectives, trace.steps
    rows = np.flatnonzero(device.is_collective & in_averaged_steps(trace, device.start_ns))[:COLLECTIVES_KEPT]
    told = np.full(len(device), NO_ROW, dtype=np.int32)
    told[table.device_row] = np.arange(len(table), dtype=np.int32)
    step = np.searchsorted(steps.start_ns, device.start_ns[rows], side="right") - 1
    calls = []
    for row, number in zip(rows.tolist(), steps.number[step].tolist(), strict=True):
        at = int(told[row])
        calls.append(
            CollectiveCall(
                step=number,
                name=trace.names[int(table.name[at] if at != NO_ROW else device.name[row])],
                group=trace.names[int(table.group[at])] if at != NO_ROW else "",
                start_ns=int(device.start_ns[row]),
                duration_ns=int(device.end_ns[row] - device.start_ns[row]),
            )
        )
    return tuple(calls)


def _on_host(trace: Trace) -> tuple[CollectiveCall, ...]:
    marks, steps = trace.annotations, trace.steps
    rows = trace.names_where(is_host_collective)[marks.name] & in_averaged_steps(trace, marks.start_ns)
    chosen = np.flatnonzero(rows)[:COLLECTIVES_KEPT]
    step = np.searchsorted(steps.start_ns, marks.start_ns[chosen], side="right") - 1
    columns = (steps.number[step], marks.name[chosen], marks.start_ns[chosen], marks.duration_ns[chosen])
    return tuple(
        CollectiveCall(number, trace.names[name], "", start, duration)
        for number, name, start, duration in zip(*(column.tolist() for column in columns), strict=True)
    )
