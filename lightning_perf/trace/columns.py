"""The columns of a trace: numpy arrays by kind of event, with strings interned once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

MATCHED_CHARACTERS = 1000
"""Patterns see at most this many characters of a name. The time of some patterns grows faster than the name."""


def matched_part(name: str) -> str:
    """Return the part of a name that patterns may see: its first 1,000 characters.

    A name in a file can have any length, and a hostile one could keep a pattern busy for minutes. The document still
    has the whole name.
    """
    return name[:MATCHED_CHARACTERS]


Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]
Int16Array = NDArray[np.int16]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

NO_ROW = -1
"""In a column of row numbers: no such row (numpy integers have no null)."""

CODED_COLUMNS = {
    "name": "names",
    "thread": "threads",
    "input_types": "type_lists",
    "input_shapes": "shape_lists",
    "input_strides": "stride_lists",
    "input_values": "value_lists",
    "dtype": "names",
    "group": "names",
}
"""Columns of codes, and the attribute of `Trace` that lists the meaning of each code."""


class _Timed(Struct, frozen=True, eq=False):
    """A table of events that have a start and an end."""

    start_ns: Int64Array
    end_ns: Int64Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64Array:
        """Length of each event in nanoseconds."""
        return self.end_ns - self.start_ns


class Spans(_Timed, frozen=True, eq=False):
    """Host intervals on threads: Python functions, and the base of the richer tables.

    Attributes:
        start_ns: Start of each interval, ascending.
        end_ns: End of each interval; never before its start.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    name: Int32Array
    thread: Int32Array

    def at(self, rows: NDArray[Any]) -> Spans:
        """Return some of the intervals, by their rows or a mask."""
        return Spans(self.start_ns[rows], self.end_ns[rows], self.name[rows], self.thread[rows])


class Annotations(Spans, frozen=True, eq=False):
    """Ranges that a user or framework marked on the host (``user_annotation``).

    Attributes:
        finished: False for a range that was still open when the recording stopped. Its end is the recording's.
        input_types: Code into `Trace.type_lists`; 0 if the trace recorded none. Annotations of collectives have them.
        input_shapes: Code into `Trace.shape_lists`; 0 if the trace recorded none.
    """

    finished: BoolArray
    input_types: Int32Array
    input_shapes: Int32Array


class Operators(Spans, frozen=True, eq=False):
    """Framework operators on the host (``cpu_op``).

    Attributes:
        input_types: Code into `Trace.type_lists`; 0 if the trace recorded none.
        input_shapes: Code into `Trace.shape_lists`; 0 if the trace recorded none.
        input_strides: Code into `Trace.stride_lists`; 0 if the trace recorded none.
        input_values: Code into `Trace.value_lists`; 0 if the trace recorded none, or more than 4 kB of text.
        sequence: Autograd sequence number that a forward operator shares with its backward, or -1.
        forward_thread: For a backward operator, the recorder's number of the forward's thread (never 0), else 0.
        flops: Floating-point operations as recorded by ``with_flops``, or 0.
    """

    input_types: Int32Array
    input_shapes: Int32Array
    input_strides: Int32Array
    input_values: Int32Array
    sequence: Int64Array
    forward_thread: Int32Array
    flops: Int64Array


class RuntimeCalls(Spans, frozen=True, eq=False):
    """Calls into the device's runtime or driver on the host (``cuda_runtime``, ``cuda_driver``, HIP's too).

    Attributes:
        correlation: Number shared with the device work that the call started, or -1.
    """

    correlation: Int64Array


class MemoryEvents(Struct, frozen=True, eq=False):
    """Allocator events (``[memory]``), in time order.

    Attributes:
        device_type: torch's ``DeviceType``: 0 CPU, 1 CUDA (HIP too).
        device: Device ordinal, -1 for the host.
        bytes: Size: positive if allocated, negative if freed.
        allocated_bytes: Allocator's total after the event, -1 if not recorded.
        reserved_bytes: Allocator's reserved total after the event, -1 if not recorded.
    """

    time_ns: Int64Array
    thread: Int32Array
    device_type: Int16Array
    device: Int16Array
    address: Int64Array
    bytes: Int64Array
    allocated_bytes: Int64Array
    reserved_bytes: Int64Array

    def __len__(self) -> int:
        return len(self.time_ns)


class Thread(Struct, frozen=True):
    """A host thread, as the trace names it.

    Attributes:
        name: The recorded thread name; empty if missing.
    """

    process: str
    thread: str
    name: str = ""


class DeviceKind(IntEnum):
    """The kind of a piece of device work, in the order of priority in the step-time breakdown."""

    COMPUTE = 0
    COLLECTIVE = 1
    H2D = 2
    D2H = 3
    D2D = 4
    P2P = 5
    COPY = 6
    """A copy with an unrecorded direction."""
    MEMSET = 7


_Y_LIMIT = 2**16

_WARP = 32
"""Threads that run as one."""


def pack_triple(sizes: Sequence[int]) -> int:
    """Return up to three dimensions of a grid or block in one number; 0 if they are not recorded or do not fit.

    CUDA allows 2³¹ - 1 in the first dimension and 65,535 in the others.

    Example:
        >>> unpack_triple(pack_triple([512, 2])), pack_triple([]), pack_triple([1, 70_000, 1])
        ((512, 2, 1), 0, 0)
    """
    x, y, z = (*sizes, 1, 1, 1)[:3]
    fits = bool(sizes) and 0 < x < 2**31 and 0 < y < _Y_LIMIT and 0 < z < _Y_LIMIT
    return (x * _Y_LIMIT + y) * _Y_LIMIT + z if fits else 0


def unpack_triple(packed: int) -> tuple[int, int, int] | None:
    """Return the dimensions of a grid or block; None if they are not recorded."""
    rest, z = divmod(packed, _Y_LIMIT)
    x, y = divmod(rest, _Y_LIMIT)
    return (x, y, z) if packed else None


class DeviceEvents(_Timed, frozen=True, eq=False, dict=True):
    """Work that ran on a device: kernels, copies and memsets.

    Attributes:
        start_ns: Start, ascending.
        end_ns: End; never before its start.
        correlation: Number shared with the runtime call that started it, or -1.
        bytes: Bytes moved by a copy or memset, or 0 if not recorded.
        grid_blocks: Thread blocks of a kernel (product of its grid), or 0.
        blocks_per_sm: As recorded; nan if not.
        occupancy: Estimated achieved occupancy, a share from 0 to 1; nan if not recorded.
        grid: Dimensions of a kernel's grid in one number, for `unpack_triple`; 0 if not recorded.
        block: Dimensions of a block in one number, for `unpack_triple`; 0 if not recorded.
        registers: Registers per thread; -1 if not recorded.
        shared_bytes: Shared memory per block, as recorded; -1 if not.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    name: Int32Array
    kind: NDArray[np.uint8]
    device: Int16Array
    stream: Int64Array
    correlation: Int64Array
    bytes: Int64Array
    grid_blocks: Int64Array
    blocks_per_sm: Float32Array
    occupancy: Float32Array
    grid: Int64Array
    block: Int64Array
    registers: Int32Array
    shared_bytes: Int32Array

    @cached_property
    def known_occupancy(self) -> Float32Array:
        """The occupancy; nan as well for a recorded 0 of a kernel with a block, or the threads of a warp, per SM.

        Some recorders write 0 for all kernels, and others for those with much shared memory. A warp is at least 1.5 %.
        """
        z, y, x = self.block % _Y_LIMIT, self.block // _Y_LIMIT % _Y_LIMIT, self.block // _Y_LIMIT**2
        has_warp = self.blocks_per_sm * (x * y * z) >= _WARP
        unknown = np.equal(self.occupancy, 0) & ((self.blocks_per_sm >= 1) | has_warp)
        return np.where(unknown, np.float32(np.nan), self.occupancy)

    @cached_property
    def is_compute(self) -> BoolArray:
        """Rows that are compute kernels, without collectives."""
        return np.equal(self.kind, DeviceKind.COMPUTE)

    @cached_property
    def is_collective(self) -> BoolArray:
        """Rows that are collective kernels, by name (nccl, rccl, …)."""
        return np.equal(self.kind, DeviceKind.COLLECTIVE)

    @cached_property
    def is_copy(self) -> BoolArray:
        """Rows that are copies of any direction."""
        return (self.kind >= DeviceKind.H2D) & (self.kind <= DeviceKind.COPY)


class Collectives(Struct, frozen=True, eq=False):
    """The recorded facts about collectives (sparse: one row per device row that has them).

    Attributes:
        name: Code into `Trace.names` (``allreduce``, ``_allgather_base``, …).
        dtype: Code into `Trace.names` (``Float``, ``BFloat16``, …).
        group: Code into `Trace.names`: the process group's name.
    """

    device_row: Int32Array
    name: Int32Array
    dtype: Int32Array
    group: Int32Array
    in_elements: Int64Array
    out_elements: Int64Array
    group_size: Int32Array

    def __len__(self) -> int:
        return len(self.device_row)


class GraphRegions(Struct, frozen=True, eq=False):
    """Names that ``torch.cuda.graph_annotations.mark_kernels`` gave to work in CUDA graphs (sparse).

    Attributes:
        name: Code into `Trace.names`: the innermost region.
        backward: Whether the work is the backward of the region.
    """

    device_row: Int32Array
    name: Int32Array
    backward: BoolArray

    def __len__(self) -> int:
        return len(self.device_row)


class Counters(Struct, frozen=True, eq=False):
    """Samples of hardware counters, in time order: power, clocks, temperature, utilization.

    Attributes:
        name: Code into `Trace.names`, with the unit as recorded, e.g. ``Power (W)``.
    """

    time_ns: Int64Array
    name: Int32Array
    device: Int16Array
    value: Float64Array

    def __len__(self) -> int:
        return len(self.time_ns)
