"""The columns of a trace: numpy arrays by kind of event, strings interned once. Those of devices: `device_events`.

All times are ``int64`` nanoseconds on one clock, all tables are sorted by ``start_ns`` (ties: the longer event first,
so that a parent precedes its children). A code is an index into one of the string tables of `Trace`; code 0 of
``type_lists``, ``shape_lists`` and ``stride_lists`` is the empty entry. A row reference that leads nowhere is `NO_ROW`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "NO_ROW",
    "Annotations",
    "BoolArray",
    "Float32Array",
    "Int16Array",
    "Int32Array",
    "Int64Array",
    "MemoryEvents",
    "Operators",
    "RuntimeCalls",
    "Spans",
    "Thread",
]

Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]
Int16Array = NDArray[np.int16]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

NO_ROW = -1
"""In a column of row numbers: there is no such row (numpy integers have no null)."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Host intervals on threads: Python functions, and the base of the richer tables.

    Attributes:
        start_ns: Begin of each interval, ascending.
        end_ns: End of each interval; never before its begin.
        name: Code into `Trace.names`.
        thread: Code into `Trace.threads`.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    name: Int32Array
    thread: Int32Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64Array:
        """Length of each interval in nanoseconds."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class Annotations(Spans):
    """Ranges that a user or framework marked on the host (``user_annotation``).

    Attributes:
        finished: False for a range that was still open when the recording stopped: its end is the recording's.
    """

    finished: BoolArray


@dataclass(frozen=True, eq=False)
class Operators(Spans):
    """Framework operators on the host (``cpu_op``).

    Attributes:
        input_types: Code into `Trace.type_lists`; 0 when the trace recorded none.
        input_shapes: Code into `Trace.shape_lists`; 0 when the trace recorded none.
        input_strides: Code into `Trace.stride_lists`; 0 when the trace recorded none.
        sequence: Autograd sequence number that a forward operator shares with its backward, or -1.
        forward_thread: For a backward operator the recorder's number of the forward's thread (never 0), else 0.
        flops: Floating-point operations as recorded by ``with_flops``, or 0.
    """

    input_types: Int32Array
    input_shapes: Int32Array
    input_strides: Int32Array
    sequence: Int64Array
    forward_thread: Int32Array
    flops: Int64Array


@dataclass(frozen=True, eq=False)
class RuntimeCalls(Spans):
    """Calls into the device's runtime or driver on the host (``cuda_runtime``, ``cuda_driver``, HIP's too).

    Attributes:
        correlation: Number shared with the device work that the call started, or -1.
    """

    correlation: Int64Array


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """Allocator events (``[memory]``), in time order.

    Attributes:
        time_ns: When.
        thread: Code into `Trace.threads`.
        device_type: torch's ``DeviceType``: 0 CPU, 1 CUDA (HIP too).
        device: Device ordinal, -1 for the host.
        address: Address of the block.
        bytes: Size: positive when allocated, negative when freed.
        allocated_bytes: Allocator's total after the event, -1 when not recorded.
        reserved_bytes: Allocator's reserved total after the event, -1 when not recorded.
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


@dataclass(frozen=True)
class Thread:
    """A host thread, as the trace names it.

    Attributes:
        process: The event's ``pid``, as text.
        thread: The event's ``tid``, as text.
        name: The recorded thread name, empty when there is none.
    """

    process: str
    thread: str
    name: str = ""
