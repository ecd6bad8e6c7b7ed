"""The columns of a trace: numpy arrays by kind of event, strings interned once. Those of devices: `device_events`.

All times are ``int64`` nanoseconds on one clock, all tables are sorted by ``start_ns`` (ties: the longer event first,
so that a parent precedes its children). A code is an index into one of the string tables of `Trace`; code 0 of
``type_lists``, ``shape_lists`` and ``stride_lists`` is the empty entry. A row reference that leads nowhere is `NO_ROW`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.description import Metadata, Problems

if TYPE_CHECKING:
    from lightning_perf.trace.device_events import Collectives, DeviceEvents
    from lightning_perf.trace.links import Links
    from lightning_perf.trace.steps import Steps

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
    "Trace",
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


@dataclass(frozen=True, eq=False)
class Trace:
    """One rank's recording as columns.

    Attributes:
        sources: The file or files it was read from.
        names: Interned event names.
        threads: Interned threads.
        type_lists: Interned operator input types, each as JSON text (``["float","Scalar"]``).
        shape_lists: Interned operator input dimensions, each as JSON text (``[[32,3,224,224],[]]``).
        stride_lists: Interned strides of operator inputs, in elements, each as JSON text (``[[50176,224,1],[]]``).
        operators: Framework operators.
        annotations: Ranges a user or framework marked (``user_annotation``), ``ProfilerStep#n`` among them.
        python: Python functions (recorded with stacks only).
        runtime: Runtime and driver calls.
        device: Device work.
        collectives: What is known of collectives.
        memory: Allocator events.
        metadata: What the recording says about itself.
        problems: What was wrong with the file.
    """

    sources: tuple[str, ...]
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    type_lists: tuple[str, ...]
    shape_lists: tuple[str, ...]
    stride_lists: tuple[str, ...]
    operators: Operators
    annotations: Annotations
    python: Spans
    runtime: RuntimeCalls
    device: DeviceEvents
    collectives: Collectives
    memory: MemoryEvents
    metadata: Metadata = field(default_factory=Metadata)
    problems: Problems = field(default_factory=Problems)

    @cached_property
    def links(self) -> Links:
        """Which runtime call started each piece of device work, and inside which operator (computed once)."""
        from lightning_perf.trace.links import find_links

        return find_links(self)

    @cached_property
    def steps(self) -> Steps:
        """The step windows (computed once)."""
        from lightning_perf.trace.steps import find_steps

        return find_steps(self)

    @property
    def begin_ns(self) -> int:
        """Begin of the first event of any table; 0 in a trace without events."""
        return min((int(t.start_ns[0]) for t in self.tables() if len(t)), default=0)

    @cached_property
    def end_ns(self) -> int:
        """End of the last event of any table; 0 in a trace without events."""
        return max((int(t.end_ns.max()) for t in self.tables() if len(t)), default=0)

    def names_where(self, accept: Callable[[str], bool]) -> BoolArray:
        """A mask over `names`: index it with a code column to get a mask over rows.

        Args:
            accept: Called once per distinct name.

        Returns:
            Boolean array of length ``len(names)``.
        """
        return np.fromiter((accept(name) for name in self.names), dtype=np.bool_, count=len(self.names))

    def tables(self) -> tuple[Spans | DeviceEvents, ...]:
        """The tables of events with a begin and an end."""
        return self.operators, self.annotations, self.python, self.runtime, self.device
