"""Which of PyTorch's parallel wrappers the model ran in, by the marks that they leave."""

from __future__ import annotations

from typing import Literal

from lightning_perf.trace.distinct import used_codes
from lightning_perf.trace.trace import Trace

__all__ = ["Wrapper", "wrappers"]

Wrapper = Literal["DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"]

_MARKS: tuple[tuple[Wrapper, str], ...] = (
    ("DataParallel", "DataParallel.forward"),
    ("DistributedDataParallel", "DistributedDataParallel.forward"),
    ("FullyShardedDataParallel", "FullyShardedDataParallel.forward"),
)


def wrappers(trace: Trace) -> tuple[Wrapper, ...]:
    """The wrappers whose forward the recording marks.

    Args:
        trace: The recording.

    Returns:
        Their names; empty when it marks none.
    """
    tables = (trace.annotations, trace.operators)
    names = {trace.names[code] for table in tables for code in used_codes(table.name)}
    return tuple(wrapper for wrapper, mark in _MARKS if mark in names)
