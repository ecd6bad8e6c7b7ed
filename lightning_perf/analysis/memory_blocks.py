"""The blocks of memory that were alive at one moment: who allocated them, and what they were for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_perf.analysis.host_phases import host_phases
from lightning_perf.analysis.intervals import union
from lightning_perf.analysis.marks import is_backward_node
from lightning_perf.trace.columns import NO_ROW, Int32Array, Int64Array, Spans
from lightning_perf.trace.nesting import enclosing_rows
from lightning_perf.trace.trace import Trace

__all__ = ["AliveBlocks", "MemoryCategory", "alive_blocks"]

MemoryCategory = Literal["activations", "gradients", "optimizer_state", "inputs", "temporaries", "unknown"]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class AliveBlocks:
    """Blocks that were alive, of one operator and one category.

    What a block is for follows from where it was allocated and when it was freed, where the recording shows both:

    - ``inputs``: allocated while a batch was fetched or moved.
    - ``optimizer_state``: allocated in an optimizer step and alive after it.
    - ``gradients``: allocated in backward and alive when the next optimizer step began.
    - ``activations``: allocated before a backward and freed during or after it.
    - ``temporaries``: freed sooner than any of these.
    - ``unknown``: anything else, such as what was not freed before the recording ended.

    Attributes:
        operator: The outermost operator in which they were allocated; None outside of operators.
        category: What they were for.
        blocks: How many.
        bytes: Their size together.
    """

    operator: str | None
    category: MemoryCategory
    blocks: int
    bytes: int


def alive_blocks(trace: Trace, rows: Int64Array, moment: int) -> tuple[AliveBlocks, ...]:
    """Find the blocks that were alive at one event of a device, among those whose allocation was recorded.

    Args:
        trace: The recording.
        rows: The device's rows of `Trace.memory`.
        moment: Index into `rows` of the event after which to look.

    Returns:
        The blocks, largest first.
    """
    events = trace.memory
    until = rows[: moment + 1]
    # A block's last event up to then: an allocation if it is alive.
    _, last = np.unique(events.address[until][::-1], return_index=True)
    born = until[::-1][last]
    born = born[events.bytes[born] > 0]
    died = _frees(trace, born, rows[moment + 1 :])
    operator = _outermost_operator(trace, born)
    category = _categories(trace, events.time_ns[born], died, operator)
    sums: dict[tuple[str | None, MemoryCategory], tuple[int, int]] = {}
    names = trace.operators.name
    for row, kind, size in zip(operator.tolist(), category, events.bytes[born].tolist(), strict=True):
        key = (trace.names[int(names[row])] if row != NO_ROW else None, kind)
        blocks, total = sums.get(key, (0, 0))
        sums[key] = blocks + 1, total + size
    found = [AliveBlocks(operator, kind, blocks, size) for (operator, kind), (blocks, size) in sums.items()]
    return tuple(sorted(found, key=lambda row: (-row.bytes, row.operator or "", row.category)))


def _frees(trace: Trace, born: Int64Array, later: Int64Array) -> Int64Array:
    """When each block was freed; `_NEVER` if it was not."""
    died = np.full(len(born), _NEVER, dtype=np.int64)
    if not len(later) or not len(born):
        return died
    events = trace.memory
    addresses, first = np.unique(events.address[later], return_index=True)
    at = np.minimum(np.searchsorted(addresses, events.address[born]), len(addresses) - 1)
    row = later[first[at]]
    freed = (addresses[at] == events.address[born]) & (events.bytes[row] < 0)
    died[freed] = events.time_ns[row[freed]]
    return died


def _outermost_operator(trace: Trace, born: Int64Array) -> Int32Array:
    """The operator row at the top of the stack in which each block was allocated."""
    events, parents = trace.memory, trace.links.operator_parent
    time = events.time_ns[born]
    order = np.argsort(time, kind="stable")
    thread = events.thread[born][order]
    instants = Spans(time[order], time[order], np.zeros_like(thread), thread)
    found = np.full(len(born), NO_ROW, dtype=np.int32)
    found[order] = enclosing_rows(instants, trace.operators, parents)
    rows = np.flatnonzero(found >= 0)
    rows = rows[parents[found[rows]] >= 0]
    while len(rows):  # as many rounds as operators are nested
        found[rows] = parents[found[rows]]
        rows = rows[parents[found[rows]] >= 0]
    return found


def _categories(trace: Trace, born: Int64Array, died: Int64Array, operator: Int32Array) -> list[MemoryCategory]:
    phases = host_phases(trace)
    batches, optimizing = union(phases["fetch"], phases["transfer"]), phases["optimizer"]
    is_node = trace.names_where(is_backward_node)[trace.operators.name] if len(trace.operators) else np.zeros(0, bool)
    is_node |= trace.operators.forward_thread != 0
    backward_begins = trace.operators.start_ns[is_node]
    next_backward = _next(backward_begins, born)
    next_optimizer = _next(optimizing.start_ns, born)
    in_batch = batches.contains(born)
    in_optimizer = optimizing.contains(born)
    # The end of the optimizer step that a block was allocated in.
    at = np.minimum(np.searchsorted(optimizing.end_ns, born, side="right"), max(len(optimizing) - 1, 0))
    step_ends = optimizing.end_ns[at] if len(optimizing) else born
    in_backward = np.zeros(len(born), dtype=np.bool_)
    in_backward[operator >= 0] = is_node[operator[operator >= 0]]
    freed = died != _NEVER
    category: list[MemoryCategory] = []
    for row in range(len(born)):
        kind: MemoryCategory = "unknown"
        if in_batch[row]:
            kind = "inputs"
        elif in_optimizer[row]:
            kind = "optimizer_state" if died[row] > step_ends[row] else "temporaries"
        elif in_backward[row]:
            if next_optimizer[row] != _NEVER and died[row] > next_optimizer[row]:
                kind = "gradients"
            elif freed[row]:
                kind = "temporaries"
        elif freed[row]:
            kind = "activations" if died[row] > next_backward[row] else "temporaries"
        category.append(kind)
    return category


def _next(begins: Int64Array, time_ns: Int64Array) -> Int64Array:
    """The first of the ascending begins at or after each instant; `_NEVER` after the last."""
    padded = np.append(begins, _NEVER)
    found: Int64Array = padded[np.searchsorted(begins, time_ns, side="left")]
    return found
