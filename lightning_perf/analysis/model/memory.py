"""Memory: the allocations over time, their peak, and the blocks that were alive at the peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_perf.analysis.core.arrays import Series, thin
from lightning_perf.analysis.core.intervals import union
from lightning_perf.analysis.model.operator_memory import OperatorMemory, operator_memory
from lightning_perf.analysis.steps.phase_timeline import host_phases, is_backward_node
from lightning_perf.trace.columns import NO_ROW, Int32Array, Int64Array, Spans
from lightning_perf.trace.indexing import enclosing_rows
from lightning_perf.trace.trace import Trace

__all__ = [
    "AliveBlocks",
    "DeviceMemory",
    "Memory",
    "MemoryCategory",
    "alive_blocks",
    "memory",
]


MemoryCategory = Literal["activations", "gradients", "optimizer_state", "inputs", "temporaries", "unknown"]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class AliveBlocks:
    """Blocks that were alive, of one operator and one category.

    The purpose of a block follows from where it was allocated and when it was freed, if the recording shows both:

    - ``inputs``: allocated while a batch was fetched or moved.
    - ``optimizer_state``: allocated in an optimizer step and alive after it.
    - ``gradients``: allocated in backward and alive when the next optimizer step began.
    - ``activations``: allocated before a backward and freed during or after it.
    - ``temporaries``: freed earlier than any of these.
    - ``unknown``: anything else, e.g. blocks that were not freed before the recording ended.

    Attributes:
        operator: The outermost operator in which they were allocated; None outside of operators.
        category: Their purpose.
        blocks: Their number.
        bytes: Their size together.
    """

    operator: str | None
    category: MemoryCategory
    blocks: int
    bytes: int


def alive_blocks(trace: Trace, rows: Int64Array, moment: int) -> tuple[AliveBlocks, ...]:
    """Find the blocks that were alive at one event of a device, of those with a recorded allocation.

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
    """Return when each block was freed; `_NEVER` if it was not."""
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
    """Return the operator row at the top of the stack in which each block was allocated."""
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
    """Return the first of the ascending starts at or after each instant; `_NEVER` after the last."""
    padded = np.append(begins, _NEVER)
    found: Int64Array = padded[np.searchsorted(begins, time_ns, side="left")]
    return found


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, over the whole recording.

    Attributes:
        device: Device ordinal; None for the host.
        absolute: Whether the figures include blocks from before the recording. Otherwise they are lower bounds: those
            of the host, and of any device in recordings without the allocator's totals.
        allocated: Bytes in tensors, over time.
        reserved: Bytes that the allocator holds, over time; None if not recorded.
        peak_allocated_bytes: Largest number of bytes in tensors.
        peak_ns: When that was first, from the start of the recording.
        peak_step: Number of the step of the peak; None outside of the steps.
        peak_reserved_bytes: Largest number of bytes that the allocator held; None if not recorded.
        alive: The blocks with a recorded allocation that were alive at the peak, largest first; None if the recording
            does not identify blocks.
        before_recording_bytes: Bytes alive at the peak since before the recording: in steady training the parameters,
            the optimizer's state and often the gradients. Missing if `absolute` is false or `alive` is missing.
        total_bytes: The device's memory; None if not recorded.
        headroom_bytes: The memory that the allocator left free at its peak; None if either is not recorded. The context
            and other processes need some of it.
        operators: The allocator events by operator, the most allocated bytes first.
    """

    device: int | None
    absolute: bool
    allocated: Series
    reserved: Series | None
    peak_allocated_bytes: int
    peak_ns: int
    peak_step: int | None
    peak_reserved_bytes: int | None
    alive: tuple[AliveBlocks, ...] | None
    before_recording_bytes: int | None
    total_bytes: int | None
    headroom_bytes: int | None
    operators: tuple[OperatorMemory, ...] = ()


@dataclass(frozen=True)
class Memory:
    """The memory of the devices with recorded allocator events.

    Attributes:
        devices: Accelerators by ordinal, then the host.
    """

    devices: tuple[DeviceMemory, ...]


def memory(trace: Trace) -> Memory | None:
    """Follow the allocators.

    Args:
        trace: The recording, made with ``profile_memory=True``.

    Returns:
        The figures, or None for a recording without allocator events.
    """
    if not len(trace.memory):
        return None
    ordinals = sorted(np.unique(trace.memory.device).tolist(), key=lambda ordinal: (ordinal < 0, ordinal))
    return Memory(tuple(_device(trace, ordinal) for ordinal in ordinals))


def _device(trace: Trace, ordinal: int) -> DeviceMemory:
    events = trace.memory
    rows = np.flatnonzero(events.device == ordinal)
    time = events.time_ns[rows]
    told = bool((events.allocated_bytes[rows] >= 0).all())
    # The host's totals begin with the recording (torch's ProfiledCPUMemoryReporter counts only while it is profiled).
    absolute = told and ordinal >= 0
    allocated = events.allocated_bytes[rows] if told else _summed(events.bytes[rows])
    reserved = events.reserved_bytes[rows]
    has_reserved = bool((reserved > 0).any())
    peak = int(np.argmax(allocated))
    peak_reserved = int(reserved.max()) if has_reserved else None
    alive = alive_blocks(trace, rows, peak) if (events.address[rows] != 0).any() else None
    known = sum(row.bytes for row in alive) if alive is not None else 0
    total = next((d.total_memory_bytes for d in trace.metadata.devices if d.ordinal == ordinal), None)
    return DeviceMemory(
        device=ordinal if ordinal >= 0 else None,
        absolute=absolute,
        allocated=thin(time, allocated, trace.begin_ns),
        reserved=thin(time, reserved, trace.begin_ns) if has_reserved else None,
        peak_allocated_bytes=int(allocated[peak]),
        peak_ns=int(time[peak]) - trace.begin_ns,
        peak_step=_step(trace, int(time[peak])),
        peak_reserved_bytes=peak_reserved,
        alive=alive,
        before_recording_bytes=max(int(allocated[peak]) - known, 0) if absolute and alive is not None else None,
        total_bytes=total,
        headroom_bytes=None if total is None or peak_reserved is None else total - peak_reserved,
        operators=operator_memory(trace, rows),
    )


def _summed(change: Int64Array) -> Int64Array:
    """Return the least that can have been allocated: freeing a block from before the recording cannot go below 0."""
    level = np.cumsum(change)
    least: Int64Array = level - min(0, int(level.min()))
    return least


def _step(trace: Trace, time_ns: int) -> int | None:
    steps = trace.steps
    row = int(np.searchsorted(steps.start_ns, time_ns, side="right")) - 1
    return int(steps.number[row]) if row >= 0 and time_ns <= int(steps.end_ns[row]) else None
