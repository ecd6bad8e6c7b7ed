"""Finds PyTorch's parallel wrappers around the model, by the ranges that they record."""

from __future__ import annotations

from typing import Literal

from lightning_perf.trace.indexing import used_codes
from lightning_perf.trace.trace import Trace

__all__ = ["Wrapper", "wrappers"]

Wrapper = Literal["DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"]

_MARKS: tuple[tuple[Wrapper, str], ...] = (
    ("DataParallel", "DataParallel.forward"),
    ("DistributedDataParallel", "DistributedDataParallel.forward"),
    ("FullyShardedDataParallel", "FullyShardedDataParallel.forward"),
)


def wrappers(trace: Trace) -> tuple[Wrapper, ...]:
    """Find the wrappers with a marked forward.

    Args:
        trace: The recording.

    Returns:
        Their names; empty without such marks.
    """
    tables = (trace.annotations, trace.operators)
    names = {trace.names[code] for table in tables for code in used_codes(table.name)}
    return tuple(wrapper for wrapper, mark in _MARKS if mark in names)
