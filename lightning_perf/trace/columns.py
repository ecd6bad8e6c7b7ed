"""The columns of a trace: numpy arrays by kind of event, strings interned once.

All times are ``int64`` nanoseconds on one clock, all tables are sorted by ``start_ns`` (ties: the longer event first,
so that a parent precedes its children). A code is an index into one of the string tables of `Trace`; code 0 of
``type_lists``, ``shape_lists`` and ``stride_lists`` is the empty entry. A row reference that leads nowhere is `NO_ROW`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lightning_perf.trace.links import Links
    from lightning_perf.trace.steps import Steps

__all__ = [
    "NO_ROW",
    "Annotations",
    "BoolArray",
    "Collectives",
    "DeviceEvents",
    "DeviceKind",
    "DeviceProperties",
    "Float32Array",
    "Int16Array",
    "Int32Array",
    "Int64Array",
    "MemoryEvents",
    "Metadata",
    "Operators",
    "Problems",
    "Processor",
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


class DeviceKind(IntEnum):
    """What a piece of device work is. The order is the order of priority in the step-time breakdown."""

    COMPUTE = 0
    COLLECTIVE = 1
    H2D = 2
    D2H = 3
    D2D = 4
    P2P = 5
    COPY = 6
    """A copy whose direction the trace does not tell."""
    MEMSET = 7

    @property
    def is_copy(self) -> bool:
        """Whether this is a memory copy of any direction."""
        return DeviceKind.H2D <= self <= DeviceKind.COPY


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
class DeviceEvents:
    """Work that ran on a device: kernels, copies and memsets.

    Attributes:
        start_ns: Begin, ascending.
        end_ns: End; never before its begin.
        name: Code into `Trace.names`.
        kind: A `DeviceKind` (uint8).
        device: Device ordinal.
        stream: Stream number.
        correlation: Number shared with the runtime call that started it, or -1.
        bytes: Bytes moved by a copy or memset, or 0 when not recorded.
        grid_blocks: Thread blocks of a kernel (product of its grid), or 0.
        block_threads: Threads a block (product of its block), or 0.
        blocks_per_sm: As recorded; nan when not.
        occupancy: Estimated achieved occupancy, a share from 0 to 1; nan when not recorded.
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
    block_threads: Int32Array
    blocks_per_sm: Float32Array
    occupancy: Float32Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64Array:
        """Length of each piece of work in nanoseconds."""
        return self.end_ns - self.start_ns

    @cached_property
    def is_compute(self) -> BoolArray:
        """Rows that are compute kernels (collectives are not)."""
        return np.equal(self.kind, DeviceKind.COMPUTE)

    @cached_property
    def is_collective(self) -> BoolArray:
        """Rows that are collective kernels, by name (nccl, rccl, …)."""
        return np.equal(self.kind, DeviceKind.COLLECTIVE)

    @cached_property
    def is_copy(self) -> BoolArray:
        """Rows that are copies of any direction."""
        return (self.kind >= DeviceKind.H2D) & (self.kind <= DeviceKind.COPY)

    @cached_property
    def is_memset(self) -> BoolArray:
        """Rows that are memsets."""
        return np.equal(self.kind, DeviceKind.MEMSET)


@dataclass(frozen=True, eq=False)
class Collectives:
    """What the trace recorded about collectives (sparse: one row a device row that carries it).

    Attributes:
        device_row: Row in `Trace.device`.
        name: Code into `Trace.names` (``allreduce``, ``_allgather_base``, …).
        dtype: Code into `Trace.names` (``Float``, ``BFloat16``, …).
        group: Code into `Trace.names`: the process group's name.
        in_elements: Elements sent.
        out_elements: Elements received.
        group_size: Ranks in the group.
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


@dataclass(frozen=True)
class DeviceProperties:
    """A device as the recording describes it; ``None`` where it does not say.

    Attributes:
        ordinal: The device's number.
        name: Marketing name, as ``NVIDIA A100-SXM4-40GB``.
        total_memory_bytes: Device memory.
        compute_major: CUDA compute capability, major.
        compute_minor: CUDA compute capability, minor.
        sm_count: Streaming multiprocessors (compute units on AMD).
        warp_size: Threads a warp (wavefront).
        max_threads_per_sm: Resident threads at most.
    """

    ordinal: int
    name: str | None = None
    total_memory_bytes: int | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    sm_count: int | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None


@dataclass(frozen=True)
class Processor:
    """The processor that recorded, as `PerfCallback` notes it; ``None`` where that is not known.

    Attributes:
        name: Its model, as ``AMD EPYC 9654 96-Core Processor``.
        cores: Cores that the process may keep busy, each counted once however many threads it runs.
        threads: Threads that one operator may use (``torch.get_num_threads()``).
        bf16: Its instructions that multiply bfloat16, by Linux's names: ``avx512_bf16``, ``amx_bf16``, ``bf16`` (Arm).
        trains: Whether it is what the model trains on.
    """

    name: str | None = None
    cores: int | None = None
    threads: int | None = None
    bf16: tuple[str, ...] | None = None
    trains: bool | None = None


@dataclass(frozen=True)
class Metadata:
    """What the recording says about itself; ``None`` where it does not.

    Attributes:
        devices: The devices present (not only those used).
        rank: This process's rank.
        world_size: Ranks in the run.
        backend: Communication backend (``nccl``, ``gloo``).
        hostname: Host that recorded.
        base_time_ns: Epoch offset already added to every time in the tables; 0 when the file gives none.
        record_shapes: Whether operator inputs were recorded.
        with_stack: Whether Python functions were recorded.
        profile_memory: Whether allocator events were recorded.
        with_flops: Whether operators carry FLOP counts.
        with_modules: Whether module names were recorded.
        runtime_version: CUDA or HIP runtime version, as recorded.
        is_hip: Whether the device is an AMD one under HIP/ROCm.
        processor: The host's processor; ``None`` where nothing is recorded of it.
    """

    devices: tuple[DeviceProperties, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    hostname: str | None = None
    base_time_ns: int = 0
    record_shapes: bool | None = None
    with_stack: bool | None = None
    profile_memory: bool | None = None
    with_flops: bool | None = None
    with_modules: bool | None = None
    runtime_version: int | None = None
    is_hip: bool = False
    processor: Processor | None = None


@dataclass(frozen=True)
class Problems:
    """What was wrong with a file that could be read all the same. All zero and false for a sound one.

    Attributes:
        truncated: The file ends before its JSON does. Device events come last, so shares of time would mislead.
        repaired_events: Events read after mending invalid JSON (escapes, control characters, bare nan).
        dropped_events: Events that could not be read even so.
        bad_durations: Events left out for a missing or negative duration or an unreadable time.
    """

    truncated: bool = False
    repaired_events: int = 0
    dropped_events: int = 0
    bad_durations: int = 0


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
