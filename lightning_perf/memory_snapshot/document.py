"""The report of a memory snapshot, the document behind ``lightning-perf analyze snapshot.pickle``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from lightning_perf.documents import TOP, Format, LongDocument, PageDocument, SavedDocument
from lightning_perf.errors import UserError

if TYPE_CHECKING:
    from lightning_perf.page.html import Kind
    from lightning_perf.show.blocks import Block, Parts

SCHEMA_VERSION = 1
"""Version of the document's layout. Every change that an old reader would misread raises it."""

HistoryState: TypeAlias = Literal["whole", "partial", "none"]


class SnapshotError(UserError):
    """A saved report of a snapshot cannot be read. The message says why."""


class CategoryBytes(Struct, frozen=True):
    """The bytes of one category.

    Attributes:
        category: ``parameters``, ``optimizer_state``, ``gradients``, ``activations``, ``inputs``, ``temporaries``,
            ``before_recording`` or ``unknown``.
        bytes: The bytes that were asked for.
    """

    category: str
    bytes: int


class Moment(Struct, frozen=True):
    """The memory at one moment.

    Attributes:
        name: ``peak``, ``out of memory`` or ``end``.
        event: The number of events before it.
        time_ns: Time since the first event; None if the events have no times.
        allocated_bytes: Bytes that allocations asked for, and that were not free again.
        reserved_bytes: Bytes of all segments.
        categories: The allocated bytes by category, without empty ones.
    """

    name: str
    event: int
    time_ns: int | None
    allocated_bytes: int
    reserved_bytes: int
    categories: tuple[CategoryBytes, ...]


class History(Struct, frozen=True):
    """How much of the life of the process the events cover.

    Attributes:
        state: ``whole`` if no memory was allocated before the first event. The peak is then exact. With ``partial`` it
            is exact since the first event, and may have been higher before. With ``none`` only the end is known.
        events: Number of events.
        time_ns: Time from the first to the last event; None if the events have no times.
        before_bytes: Bytes allocated before the first event and alive then.
        dropped_stacks: Allocations with a stack but without an event. An earlier recording made them, or the history
            was full and dropped its oldest events.
        conflicts: Events that contradict each other or the end. If it is not 0, the peak is an estimate.
    """

    state: HistoryState
    events: int
    time_ns: int | None
    before_bytes: int
    dropped_stacks: int
    conflicts: int


class MemoryGroup(Struct, frozen=True):
    """The allocations of one line.

    Attributes:
        line: The innermost line outside of torch and Lightning, e.g. ``model/net.py:31 forward``. Without one it is the
            innermost line of Python or the operator of autograd.
        module: Class of the innermost module; None if the stack does not show it.
        phase: ``forward``, ``backward``, ``optimizer``, ``other`` or ``unknown``.
        category: The category, as for `CategoryBytes`.
        peak_bytes: Its bytes at the peak.
        peak_blocks: Its allocations alive at the peak.
        end_bytes: Its bytes at the end.
        out_of_memory_bytes: Its bytes at the last out-of-memory error; None without one.
        allocations: Its allocations in the whole history.
        allocated_bytes: Their bytes.
    """

    line: str
    module: str | None
    phase: str
    category: str
    peak_bytes: int
    peak_blocks: int
    end_bytes: int
    out_of_memory_bytes: int | None
    allocations: int
    allocated_bytes: int


class Pool(Struct, frozen=True):
    """The segments at the end that can serve the same allocations.

    Attributes:
        stream: Their stream.
        size: ``large`` for allocations over 1 MiB, else ``small``.
        pool: The private memory pool, e.g. of a CUDA graph; ``0, 0`` for the common one.
        segments: Number of segments.
        reserved_bytes: Their size.
        free_bytes: Size of the free blocks.
        largest_free_bytes: Size of the largest free block.
        releasable_bytes: Size of the segments without a block in use. ``torch.cuda.empty_cache()`` returns them.
        fragmented_bytes: Free bytes in segments with a block in use. They can serve smaller allocations only.
    """

    stream: int
    size: str
    pool: str
    segments: int
    reserved_bytes: int
    free_bytes: int
    largest_free_bytes: int
    releasable_bytes: int
    fragmented_bytes: int


class Run(Struct, frozen=True):
    """A part of a segment with one use.

    Attributes:
        category: The category, ``free``, or ``mixed`` for a part with blocks of several categories.
        bytes: Its size.
    """

    category: str
    bytes: int


class SegmentMap(Struct, frozen=True):
    """A segment at the end and its contents.

    Attributes:
        address: Its address in hexadecimal digits.
        stream: Its stream.
        size: ``large`` or ``small``.
        pool: Its pool.
        is_expandable: Whether it can grow.
        reserved_bytes: Its size.
        used_bytes: Size of its blocks in use.
        largest_free_bytes: Size of its largest free block.
        runs: Its contents in order of address.
    """

    address: str
    stream: int
    size: str
    pool: str
    is_expandable: bool
    reserved_bytes: int
    used_bytes: int
    largest_free_bytes: int
    runs: tuple[Run, ...]


class OutOfMemory(Struct, frozen=True):
    """An out-of-memory error in the history.

    Attributes:
        requested_bytes: The bytes of the allocation that failed, rounded up by the allocator.
        device_free_bytes: Memory that was free on the device.
        allocated_bytes: Bytes in use.
        cached_bytes: Reserved bytes that were not in use.
        largest_free_bytes: The largest free part of the segments that could serve the allocation, at most. Segments of
            other streams, and of the other size class, cannot serve it.
        line: The line that asked, as in `MemoryGroup`.
        module: Class of the innermost module; None if unknown.
        fragmented: Whether the free parts of these segments would have sufficed in one piece.
    """

    requested_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    cached_bytes: int
    largest_free_bytes: int
    line: str
    module: str | None
    fragmented: bool


class GrowthRow(Struct, frozen=True):
    """A group that grew from step to step.

    Attributes:
        line: The line, as in `MemoryGroup`.
        category: The category.
        growth_bytes: Growth over all compared steps.
    """

    line: str
    category: str
    growth_bytes: int


class Growth(Struct, frozen=True):
    """Memory that grows over the steps and never falls, which hints at a leak.

    Attributes:
        steps: Steps from the first to the last compared step.
        growth_bytes: Growth of the fewest allocated bytes within a step, over all these steps.
        rows: The groups that grew most.
    """

    steps: int
    growth_bytes: int
    rows: tuple[GrowthRow, ...]


class CurveArea(Struct, frozen=True):
    """One area of the curve.

    Attributes:
        name: The category or line.
        bytes: Its bytes at each point.
    """

    name: str
    bytes: tuple[int, ...]


class Curve(Struct, frozen=True):
    """The memory over time, at a few hundred points. Each point is the highest one of its stretch of events.

    Attributes:
        event: Number of events before each point.
        time_ns: Time since the first event; None if the events have no times.
        reserved_bytes: Bytes of all segments.
        categories: Allocated bytes by category.
        lines: Allocated bytes of the largest lines and, as the last area, of all others.
    """

    event: tuple[int, ...]
    time_ns: tuple[int, ...] | None
    reserved_bytes: tuple[int, ...]
    categories: tuple[CurveArea, ...]
    lines: tuple[CurveArea, ...]


class DeviceMemory(Struct, frozen=True):
    """The memory of one device.

    Attributes:
        device: Its number.
        reserved_bytes: Bytes of all segments, at the end.
        inactive_bytes: Bytes of free blocks.
        history: The extent of the history.
        peak: The moment of the most allocated bytes.
        end: The end.
        out_of_memory: The out-of-memory errors.
        groups: The allocations by line, the largest at the peak first.
        left_out_groups: Number of small groups that ``groups`` leaves out.
        pools: The segments by pool.
        segments: The largest segments.
        left_out_segments: Number of smaller segments that ``segments`` leaves out.
        growth: Growth over the steps; None without growth, or if the history has too few steps.
        curve: The memory over time; None without a history.
    """

    device: int
    reserved_bytes: int
    inactive_bytes: int
    history: History
    peak: Moment
    end: Moment
    out_of_memory: tuple[OutOfMemory, ...]
    groups: tuple[MemoryGroup, ...]
    left_out_groups: int
    pools: tuple[Pool, ...]
    segments: tuple[SegmentMap, ...]
    left_out_segments: int
    growth: Growth | None
    curve: Curve | None


class MemoryReport(LongDocument, PageDocument, SavedDocument, frozen=True):
    """The memory of a process, from a snapshot of its CUDA allocator.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        source: The file.
        devices: The devices with memory or events.
        settings: The allocator's settings by name.
        notes: Remarks to read first.
    """

    schema_version: int
    tool_version: str
    source: str
    devices: tuple[DeviceMemory, ...]
    settings: dict[str, str]
    notes: tuple[str, ...]

    _format = Format(
        "report of a memory snapshot", "report", SCHEMA_VERSION, "analyze the snapshot again", SnapshotError
    )

    def blocks(self, top: int = TOP) -> Iterator[Block]:
        """Yield a sentence per device, then its tables."""
        from lightning_perf.memory_snapshot.blocks import snapshot_blocks

        return snapshot_blocks(self, top)

    def _page(self) -> tuple[Kind, str]:
        return "snapshot", Path(self.source).name

    def _page_data(self) -> bytes:
        return b"{}"  # the parts have all of it

    def _parts(self) -> Parts:
        from lightning_perf.memory_snapshot.blocks import snapshot_parts

        return snapshot_parts(self)
