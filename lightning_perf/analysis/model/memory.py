"""Memory: the allocations over time, their peak, the blocks alive then, and the peak for other batch sizes."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import Series, thin
from lightning_perf.analysis.model.memory_blocks import (
    CODES,
    Blocks,
    MemoryCategory,
    OperatorMemory,
    find_blocks,
    find_places,
    operator_memory,
)
from lightning_perf.analysis.steps.breakdown import host_phases
from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.tensors import WindowTensors
from lightning_perf.trace.trace import Trace

MARGIN = 0.05
"""Share by which both ends of a prediction are widened: the sizes of some blocks follow the batch only roughly."""

LARGEST_FACTOR = 1000
"""A largest batch is sought up to this many times the recorded one. Beyond, memory does not limit it."""


class BatchMemory(Struct, frozen=True):
    """The peak for other batch sizes: the highest of all moments of the recorded steps, as each grows with the batch.

    In the low prediction, blocks as large as a parameter stay the same size, e.g. casts of weights. In the high one,
    they grow with the batch, too.

    Attributes:
        batch_size: Samples of the recorded batches.
        sample_bytes: Bytes per further sample in large batches, by the high prediction.
        doubled_low_bytes: The least memory in tensors that is predicted for a batch of twice the size.
        doubled_high_bytes: The most.
        available_bytes: Memory that tensors could use; None if it was not recorded. On a device, the share that the
            allocator held without tensors is taken off.
        largest_low: The largest batch that fits by the high prediction; None if it is not known, or if memory does not
            limit the batch.
        largest_high: The largest batch that fits by the low prediction; None as above.
    """

    batch_size: int
    sample_bytes: float
    doubled_low_bytes: int
    doubled_high_bytes: int
    available_bytes: int | None
    largest_low: int | None
    largest_high: int | None


def batch_memory(
    total: Int64Array, likely: Int64Array, possible: Int64Array, batch_size: int, available_bytes: int | None
) -> BatchMemory | None:
    """Predict the peak for other batch sizes from the memory of the recorded steps."""
    if not len(total) or batch_size < 1 or not int(possible.max()):
        return None

    def largest(growing: Int64Array, margin: float) -> int | None:
        """Return the largest batch that fits at every moment."""
        if available_bytes is None:
            return None
        free = available_bytes / margin - (total - growing)
        grows = growing > 0
        limit = float((free[grows] / (growing[grows] / batch_size)).min(initial=np.inf)) if (free >= 0).all() else 0.0
        return int(limit) if limit <= LARGEST_FACTOR * batch_size else None

    return BatchMemory(
        batch_size=batch_size,
        sample_bytes=int(possible.max()) / batch_size,
        doubled_low_bytes=int((total + likely).max() * (1 - MARGIN)),
        doubled_high_bytes=int((total + possible).max() * (1 + MARGIN)),
        available_bytes=available_bytes,
        largest_low=largest(possible, 1 + MARGIN),
        largest_high=largest(likely, 1 - MARGIN),
    )


PeakCategory = Literal[
    "parameters", "gradients", "optimizer state", "activations", "temporary", "other", "lightning_perf", "fragmentation"
]

PEAK_PARTS: dict[MemoryCategory, PeakCategory] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "temporaries": "temporary",
    "inputs": "other",
    "unknown": "other",
    "lightning_perf": "lightning_perf",
}
"""The part of the peak to which the blocks of each category belong."""

_NAMES = {code: name for name, code in CODES.items()}


class AliveBlocks(Struct, frozen=True):
    """Blocks that were alive, of one operator, phase, module and category.

    `PerfCallback` lists the tensors of ``parameters``, ``gradients`` and ``optimizer_state``, and as ``lightning_perf``
    those that it holds itself. The purpose of another block follows from where it was allocated and when it was freed,
    if the recording shows both:

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
        phase: The phase of the step in which they were allocated; None for blocks from before the recording, and in
            reports of older versions.
        module: The innermost module that allocated them, in its forward or its backward. None outside of modules and in
            recordings without modules.
    """

    operator: str | None
    category: MemoryCategory
    blocks: int
    bytes: int
    phase: str | None = None
    module: str | None = None


class PeakPart(Struct, frozen=True):
    """One part of the memory at the peak.

    Attributes:
        category: Its name. ``fragmentation`` is memory that the allocator held without a tensor in it.
        bytes: Its size.
    """

    category: PeakCategory
    bytes: int


class ModuleActivations(Struct, frozen=True):
    """The activations of a module that were alive at the peak, with those of the modules inside it.

    Attributes:
        name: The module, as `ModuleRow.name`.
        depth: 0 for the outermost.
        inner_modules: Whether activations of modules inside it are among them.
        blocks: Their number.
        bytes: Their size together.
        largest_bytes: Size of the largest one.
    """

    name: str
    depth: int
    inner_modules: bool
    blocks: int
    bytes: int
    largest_bytes: int


def find_alive(
    trace: Trace, blocks: Blocks, moment: int
) -> tuple[tuple[AliveBlocks, ...], tuple[ModuleActivations, ...]]:
    """Return the blocks alive after an event, and the activations among them by module."""
    rows = np.flatnonzero((blocks.born <= moment) & (blocks.died > moment))
    places = find_places(trace, blocks, rows)
    sums: dict[tuple[str | None, MemoryCategory, str | None, str | None], list[int]] = defaultdict(lambda: [0, 0])
    of_module: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (operator, phase, chain), code, size in zip(
        places, blocks.category[rows].tolist(), blocks.bytes[rows].tolist(), strict=True
    ):
        category = _NAMES[code]
        counted = sums[operator, category, phase, chain[-1] if chain else None]
        counted[0] += 1
        counted[1] += size
        if category == "activations":
            for depth in range(len(chain)):
                module = of_module[chain[: depth + 1]]
                module[0] += 1
                module[1] += size
                module[2] = max(module[2], size)
    found = [
        AliveBlocks(operator, category, number, size, phase, module)
        for (operator, category, phase, module), (number, size) in sums.items()
    ]
    found.sort(key=lambda row: (-row.bytes, row.operator or "", row.category, row.phase or "", row.module or ""))
    callers = {chain[:-1] for chain in of_module}
    modules = [
        ModuleActivations(chain[-1], len(chain) - 1, chain in callers, *figures) for chain, figures in of_module.items()
    ]
    modules.sort(key=lambda row: (-row.bytes, row.depth, row.name))
    return tuple(found), tuple(modules)


class DeviceMemory(Struct, frozen=True):
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
        before_recording_bytes: Bytes alive at the peak since before the recording that `PerfCallback` did not list.
            Without its lists these are the parameters, the optimizer's state and often the gradients. Missing if
            `absolute` is false or `alive` is missing.
        total_bytes: The device's memory; None if not recorded.
        headroom_bytes: The memory that the allocator left free at its peak; None if either is not recorded. The context
            and other processes need some of it.
        operators: The allocator events by operator, the most allocated bytes first.
        listed: Whether `PerfCallback` listed the parameters, gradients and optimizer state. Then the figures of the
            host include them.
        parts: The memory at the peak by category; empty if `alive` is missing, and in reports of older versions.
        activations: The activations at the peak by module, the largest first; empty without modules.
        batch: The peak for other batch sizes; None if the batch size is not known.
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
    listed: bool = False
    parts: tuple[PeakPart, ...] = ()
    activations: tuple[ModuleActivations, ...] = ()
    batch: BatchMemory | None = None

    def part_bytes(self, category: PeakCategory) -> int:
        """Return the size of one part of the peak; 0 if it has no such part."""
        return sum(part.bytes for part in self.parts if part.category == category)


class Memory(Struct, frozen=True):
    """The memory of the devices with recorded allocator events.

    Attributes:
        devices: Accelerators by ordinal, then the host.
    """

    devices: tuple[DeviceMemory, ...]


def memory(trace: Trace) -> Memory | None:
    """Follow the allocators; None for a recording without their events."""
    if not len(trace.memory):
        return None
    ordinals = sorted(np.unique(trace.memory.device).tolist(), key=lambda ordinal: (ordinal < 0, ordinal))
    return Memory(tuple(_device(trace, ordinal) for ordinal in ordinals))


class _Window(Struct, frozen=True, eq=False):
    """The events of one device in one recorded window."""

    rows: Int64Array
    blocks: Blocks | None
    level: Int64Array
    tensors: WindowTensors | None


def _device(trace: Trace, ordinal: int) -> DeviceMemory:
    events = trace.memory
    rows = np.flatnonzero(events.device == ordinal)
    time = events.time_ns[rows]
    has_totals = bool((events.allocated_bytes[rows] >= 0).all())
    # The host's totals begin with the recording (torch's ProfiledCPUMemoryReporter counts only while it is profiled).
    absolute = has_totals and ordinal >= 0
    windows = _windows(trace, ordinal, rows, has_totals)
    allocated = np.concatenate([window.level for window in windows])
    reserved = events.reserved_bytes[rows]
    has_reserved = bool((reserved > 0).any())
    peak = int(np.argmax(allocated))
    peak_reserved = int(reserved.max()) if has_reserved else None
    ends = np.cumsum([len(window.rows) for window in windows])
    number = int(np.searchsorted(ends, peak, side="right"))
    window, moment = windows[number], peak - int(ends[number]) + len(windows[number].rows)
    alive, activations = find_alive(trace, window.blocks, moment) if window.blocks is not None else (None, ())
    known = sum(row.bytes for row in alive) if alive is not None else 0
    before = max(int(allocated[peak]) - known, 0) if absolute and alive is not None else None
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
        before_recording_bytes=before,
        total_bytes=total,
        headroom_bytes=None if total is None or peak_reserved is None else total - peak_reserved,
        operators=operator_memory(trace, rows),
        listed=window.tensors is not None,
        parts=_parts(alive, before or 0, int(reserved[peak] - allocated[peak]) if has_reserved else 0),
        activations=activations,
        batch=_batch(trace, window, ordinal, int(allocated[peak]), peak_reserved),
    )


def _windows(trace: Trace, ordinal: int, rows: Int64Array, has_totals: bool) -> list[_Window]:
    """Divide the events of a device by window, if each window lists its tensors."""
    events = trace.memory
    has_blocks = bool((events.address[rows] != 0).any())
    lists = sorted(trace.tensors, key=lambda tensors: tensors.begin_ns)
    if not lists or not has_blocks:
        blocks = find_blocks(trace, rows, None, ordinal) if has_blocks else None
        level = events.allocated_bytes[rows]
        if not has_totals:
            level = np.cumsum(events.bytes[rows])
            level -= min(0, int(level.min()))  # freeing a block from before the recording cannot go below 0
        return [_Window(rows, blocks, level, None)]
    begins = np.array([tensors.begin_ns for tensors in lists], dtype=np.int64)
    place = np.maximum(np.searchsorted(begins, events.time_ns[rows], side="right") - 1, 0)
    found = []
    for number, tensors in enumerate(lists):
        part = rows[place == number]
        if len(part):
            blocks = find_blocks(trace, part, tensors, ordinal)
            level = events.allocated_bytes[part] if has_totals and ordinal >= 0 else blocks.level(len(part))
            found.append(_Window(part, blocks, level, tensors))
    return found


def _parts(alive: tuple[AliveBlocks, ...] | None, before: int, unused: int) -> tuple[PeakPart, ...]:
    """Sum up the memory at the peak by category."""
    if alive is None:
        return ()
    sums: dict[PeakCategory, int] = dict.fromkeys(PEAK_PARTS.values(), 0)
    for row in alive:
        sums[PEAK_PARTS[row.category]] += row.bytes
    sums["other"] += before
    sums["fragmentation"] = max(unused, 0)
    return tuple(PeakPart(category, size) for category, size in sums.items() if size)


def _batch(
    trace: Trace, window: _Window, ordinal: int, peak_bytes: int, peak_reserved_bytes: int | None
) -> BatchMemory | None:
    """Predict the peak for other batch sizes. Needs the size of the batches, and lists of the parameters."""
    batch_size = trace.metadata.loader.batch_size if trace.metadata.loader is not None else None
    if batch_size is None or window.tensors is None or window.blocks is None:
        return None
    blocks = window.blocks
    growing = np.isin(blocks.category, [CODES[name] for name in ("activations", "inputs", "temporaries", "unknown")])
    growing &= ~_in_optimizer(trace, blocks)
    sizes = window.tensors.start.bytes[window.tensors.start.kind == 0]
    as_parameter = np.isin(blocks.bytes, np.concatenate((sizes, sizes // 2)))  # casts to 16 bits have half the size
    count = len(window.rows)
    available = window.tensors.available_bytes.get(ordinal)
    if available is not None and peak_reserved_bytes:
        available = int(available * min(peak_bytes / peak_reserved_bytes, 1.0))
    return batch_memory(
        window.level, blocks.level(count, growing & ~as_parameter), blocks.level(count, growing), batch_size, available
    )


def _in_optimizer(trace: Trace, blocks: Blocks) -> BoolArray:
    known = blocks.event >= 0
    found = np.zeros(len(blocks), dtype=np.bool_)
    found[known] = host_phases(trace)["optimizer"].contains(trace.memory.time_ns[blocks.event[known]])
    return found


def _step(trace: Trace, time_ns: int) -> int | None:
    steps = trace.steps
    row = int(np.searchsorted(steps.start_ns, time_ns, side="right")) - 1
    return int(steps.number[row]) if row >= 0 and time_ns <= int(steps.end_ns[row]) else None
