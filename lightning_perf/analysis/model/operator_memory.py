"""Memory by operator: allocator events, and how much each operator allocates and keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.trace.columns import Int64Array, Spans
from lightning_perf.trace.indexing import distinct, enclosing_rows
from lightning_perf.trace.trace import Trace

__all__ = ["OperatorMemory", "operator_memory"]


@dataclass(frozen=True)
class OperatorMemory:
    """The allocator events of one operator on one device, over the whole recording.

    Attributes:
        operator: The innermost operator of the events; None for events outside of operators.
        allocations: Number of blocks that it allocates.
        frees: Number of blocks that it frees.
        allocated_bytes: Bytes that it allocates.
        growth_bytes: Bytes that it allocates minus bytes that it frees. Blocks may outlive the operator or come from
            another one, so a single operator can be negative.
    """

    operator: str | None
    allocations: int
    frees: int
    allocated_bytes: int
    growth_bytes: int


def operator_memory(trace: Trace, rows: Int64Array) -> tuple[OperatorMemory, ...]:
    """Sum up the allocator events of one device by operator.

    Args:
        trace: The recording.
        rows: The device's rows of `Trace.memory`.

    Returns:
        The operators, the most allocated bytes first.
    """
    events = trace.memory
    time, thread = events.time_ns[rows], events.thread[rows]
    instants = Spans(time, time, np.zeros_like(thread), thread)
    operator = enclosing_rows(instants, trace.operators, trace.links.operator_parent)
    names = np.full(len(rows), len(trace.names), dtype=np.int64)
    names[operator >= 0] = trace.operators.name[operator[operator >= 0]]
    codes, index = distinct(names)
    change = events.bytes[rows]
    born, size = change > 0, len(codes)
    allocations, frees = np.bincount(index[born], minlength=size), np.bincount(index[~born], minlength=size)
    allocated, growth = sum_by(index[born], change[born], size), sum_by(index, change, size)
    found = [
        OperatorMemory(
            trace.names[code] if code < len(trace.names) else None,
            *(int(column[at]) for column in (allocations, frees, allocated, growth)),
        )
        for at, code in enumerate(codes.tolist())
    ]
    return tuple(sorted(found, key=lambda row: (-row.allocated_bytes, -row.frees, row.operator or "")))
