"""The blocks of memory that a recording shows: when and where each was allocated and freed, and for which purpose."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import sum_by, union
from lightning_perf.analysis.model.modules import forward_operator, module_calls
from lightning_perf.analysis.steps.breakdown import PHASES, host_phases, is_backward_node, phases_at
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int32Array, Int64Array, Spans
from lightning_perf.trace.indexing import at_rows, distinct, enclosing_rows, innermost_marked, parent_rows
from lightning_perf.trace.tensors import KINDS, WindowTensors
from lightning_perf.trace.trace import Trace

MemoryCategory = Literal[
    "activations", "gradients", "optimizer_state", "inputs", "temporaries", "unknown", "parameters", "lightning_perf"
]

_CATEGORIES: tuple[MemoryCategory, ...] = get_args(MemoryCategory)

CODES: dict[MemoryCategory, int] = {category: code for code, category in enumerate(_CATEGORIES)}
"""The code of each category in `Blocks.category`."""

_OF_KIND = np.array([CODES[kind] for kind in KINDS], dtype=np.int8)

_NEVER = np.iinfo(np.int64).max


class Blocks(Struct, frozen=True, eq=False):
    """The blocks of one device in one window, one row per block.

    A position is a place among the allocator events of that device and window. After the event at position ``p``, the
    blocks with ``born <= p < died`` are alive.

    Attributes:
        born: Position of the allocation; -1 for a block from before the recording.
        died: Position of the free; the number of events if it was not freed.
        event: Row of the allocation in `Trace.memory`; `NO_ROW` for a block from before the recording.
        category: Its purpose, a code of `CODES`.
        operator: Row of the innermost operator in which it was allocated; `NO_ROW` outside of operators.
    """

    born: Int64Array
    died: Int64Array
    event: Int64Array
    bytes: Int64Array
    category: np.ndarray[tuple[int], np.dtype[np.int8]]
    operator: Int32Array

    def __len__(self) -> int:
        return len(self.born)

    def level(self, events: int, which: BoolArray | None = None) -> Int64Array:
        """Return the bytes alive after each event."""
        rows = slice(None) if which is None else which
        change = np.zeros(events + 1, dtype=np.int64)
        np.add.at(change, np.maximum(self.born[rows], 0), self.bytes[rows])
        np.subtract.at(change, self.died[rows], self.bytes[rows])
        total: Int64Array = np.cumsum(change[:events])
        return total


def find_blocks(trace: Trace, rows: Int64Array, window: WindowTensors | None, device: int) -> Blocks:
    """Follow every block of a device through a window. `window` are the tensors that `PerfCallback` listed in it."""
    events = trace.memory
    time, address, size = events.time_ns[rows], events.address[rows], events.bytes[rows]
    count = len(rows)
    position = np.flatnonzero(size != 0)
    order = position[np.argsort(address[position], kind="stable")]
    following = np.full(count, count, dtype=np.int64)
    same = address[order[1:]] == address[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    born = np.flatnonzero(size > 0)
    died = following[born]
    operator = _enclosing(trace, rows[born], trace.operators, trace.links.operator_parent)
    died_ns = np.append(time, _NEVER)[died]
    category = _categories(trace, time[born], died_ns, _outermost(trace, operator))
    blocks = Blocks(born, died, rows[born], size[born], category, operator)
    return blocks if window is None else _with_listed(trace, blocks, window, device, time, address)


def _with_listed(
    trace: Trace, blocks: Blocks, window: WindowTensors, device: int, time: Int64Array, address: Int64Array
) -> Blocks:
    """Name the blocks that are listed at the end of the window, and add those that are listed at its start."""
    count = len(time)
    start, end = window.start.on(device), window.end.on(device)
    category = blocks.category.copy()
    kept = np.flatnonzero(blocks.died == count)
    found, at = _find(address[blocks.born[kept]], end.address)
    category[kept[found]] = _OF_KIND[end.kind[at[found]]]

    # The first event at the address of an older block ends it, even if it is another allocation. For host memory from
    # before the recording, torch's recorder does not report the free.
    addresses, first = np.unique(address, return_index=True)
    found, at = _find(start.address, addresses)
    died = np.full(len(start), count, dtype=np.int64)
    died[found] = first[at[found]]
    if device < 0:
        # So the free of gradients that zero_grad cleared is not recorded either, unless they stay to the end.
        still, _ = _find(start.address, end.address)
        gone = (start.kind == KINDS.index("gradients")) & ~(still & (died == count))
        died[gone] = np.minimum(died[gone], np.searchsorted(time, _gradients_cleared_ns(trace, time), side="left"))
    older = len(start)
    return Blocks(
        np.concatenate((np.full(older, -1, dtype=np.int64), blocks.born)),
        np.concatenate((died, blocks.died)),
        np.concatenate((np.full(older, NO_ROW, dtype=np.int64), blocks.event)),
        np.concatenate((start.bytes, blocks.bytes)),
        np.concatenate((_OF_KIND[start.kind], category)),
        np.concatenate((np.full(older, NO_ROW, dtype=np.int32), blocks.operator)),
    )


def _find(wanted: Int64Array, among: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Return which of the wanted values are among others, and the place of each there."""
    if not len(among):
        return np.zeros(len(wanted), dtype=np.bool_), np.zeros(len(wanted), dtype=np.int64)
    order = np.argsort(among, kind="stable")
    place = order[np.minimum(np.searchsorted(among[order], wanted), len(among) - 1)]
    return among[place] == wanted, place


def _gradients_cleared_ns(trace: Trace, time: Int64Array) -> int:
    """Return when the first ``zero_grad`` of the window ended, or else when its first backward started."""
    begin, end = (int(time[0]), int(time[-1])) if len(time) else (0, 0)
    marks = trace.annotations
    cleared = trace.names_where(lambda name: name.startswith("Optimizer.zero_grad#"))[marks.name]
    ends = marks.end_ns[cleared & (marks.end_ns >= begin) & (marks.end_ns <= end)] if len(marks) else marks.end_ns
    if len(ends):
        return int(ends.min())
    backward = host_phases(trace)["backward"].start_ns
    backward = backward[backward >= begin]
    return int(backward[0]) if len(backward) else begin


def _enclosing(trace: Trace, event: Int64Array, outer: Spans, parents: Int32Array) -> Int32Array:
    """Return the row of the innermost interval in which each allocator event lies."""
    events = trace.memory
    time = events.time_ns[event]
    order = np.argsort(time, kind="stable")
    thread = events.thread[event][order]
    instants = Spans(time[order], time[order], np.zeros_like(thread), thread)
    found = np.full(len(event), NO_ROW, dtype=np.int32)
    found[order] = enclosing_rows(instants, outer, parents)
    return found


def _outermost(trace: Trace, operator: Int32Array) -> Int64Array:
    """Return the operator at the top of the stack of each one."""
    parents = trace.links.operator_parent
    return innermost_marked(parents, operator, parents == NO_ROW)


def _categories(
    trace: Trace, born: Int64Array, died: Int64Array, operator: Int64Array
) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """Return the purpose of each block, by the phase of its allocation and the time of its free."""
    phases = host_phases(trace)
    batches, optimizing = union(phases["fetch"], phases["transfer"]), phases["optimizer"]
    is_node = trace.names_where(is_backward_node)[trace.operators.name] | (trace.operators.forward_thread != 0)
    next_backward = _next(trace.operators.start_ns[is_node], born)
    next_optimizer = _next(optimizing.start_ns, born)
    # The end of the optimizer step that a block was allocated in.
    at = np.minimum(np.searchsorted(optimizing.end_ns, born, side="right"), max(len(optimizing) - 1, 0))
    step_ends = optimizing.end_ns[at] if len(optimizing) else born
    in_backward = at_rows(is_node, operator, False)
    in_batch, in_optimizer = batches.contains(born), optimizing.contains(born)
    freed = died != _NEVER
    in_forward = ~in_backward & freed
    kept = (next_optimizer != _NEVER) & (died > next_optimizer)
    cases: list[tuple[BoolArray, MemoryCategory]] = [
        (in_batch, "inputs"),
        (in_optimizer & (died > step_ends), "optimizer_state"),
        (in_optimizer, "temporaries"),
        (in_backward & kept, "gradients"),
        (in_backward & freed, "temporaries"),
        (in_forward & (died > next_backward), "activations"),
        (in_forward, "temporaries"),
    ]
    chosen = np.select([case for case, _ in cases], [CODES[name] for _, name in cases], CODES["unknown"])
    return chosen.astype(np.int8)


def _next(begins: Int64Array, time_ns: Int64Array) -> Int64Array:
    """Return the first of the ascending starts at or after each instant; `_NEVER` after the last."""
    padded = np.append(begins, _NEVER)
    found: Int64Array = padded[np.searchsorted(begins, time_ns, side="left")]
    return found


def find_places(trace: Trace, blocks: Blocks, rows: Int64Array) -> list[tuple[str | None, str | None, tuple[str, ...]]]:
    """Find where some blocks were allocated: the outermost operator, the phase of the step, and the modules around it.

    A block from before the recording has no phase (None). A block of a backward belongs to the modules of the
    forward, the outermost first.
    """
    operator, event = blocks.operator[rows], blocks.event[rows]
    names = trace.operators.name
    outermost = [trace.names[int(names[row])] if row != NO_ROW else None for row in _outermost(trace, operator)]
    known = np.flatnonzero(event != NO_ROW)
    phase: list[str | None] = [None] * len(rows)
    for row, code in zip(known.tolist(), phases_at(trace, trace.memory.time_ns[event[known]]).tolist(), strict=True):
        phase[row] = PHASES[code]
    modules: list[tuple[str, ...]] = [()] * len(rows)
    calls, prefix, _ = module_calls(trace, averaged=False)
    if len(calls):
        parents = parent_rows(calls)
        found = np.full(len(rows), NO_ROW, dtype=np.int32)
        found[known] = _enclosing(trace, event[known], calls, parents)
        owner, root = forward_operator(trace)
        if owner is not None:
            # A block of the backward belongs to the module that made the node in its forward.
            forward = at_rows(owner, at_rows(root, operator, NO_ROW), NO_ROW)
            linked = np.flatnonzero((found == NO_ROW) & (forward >= 0))
            of_operator = enclosing_rows(trace.operators, calls, parents)
            found[linked] = of_operator[forward[linked]]
        for row, call in enumerate(found.tolist()):
            chain = []
            while call != NO_ROW:
                chain.append(trace.names[int(calls.name[call])][len(prefix) :])
                call = int(parents[call])
            modules[row] = tuple(reversed(chain))
    return list(zip(outermost, phase, modules, strict=True))


class OperatorMemory(Struct, frozen=True):
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
    """Sum up the allocator events of one device by operator."""
    events = trace.memory
    operator = _enclosing(trace, rows, trace.operators, trace.links.operator_parent)
    codes, index = distinct(at_rows(trace.operators.name, operator, len(trace.names)))
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
