"""The contents of a memory snapshot as columns: segments, blocks, and the events of each device.

The layout is that of ``torch.cuda.memory._snapshot`` in all releases since 2.0. Older ones have blocks without
addresses and events without times. The stack of such a block is in its ``history``.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from lightning_perf.errors import TraceError
from lightning_perf.units import format_bytes

_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""The exceptions of an unpickler that reads damaged data."""


class NotPlainError(Exception):
    """The pickle is damaged, or holds an object that is not a plain value. The message says which, as a clause."""


def load_plain_pickle(data: bytes) -> object:
    """Load a pickle that consists of containers, text, numbers, booleans and None only.

    Example:
        >>> load_plain_pickle(pickle.dumps({"segments": [1, 2.5, None]}))
        {'segments': [1, 2.5, None]}
        >>> load_plain_pickle(pickle.dumps(len))
        Traceback (most recent call last):
            ...
        lightning_perf.memory_snapshot.snapshot.NotPlainError: it holds the Python object 'builtins.len'
    """
    collecting = gc.isenabled()
    gc.disable()  # a snapshot has millions of containers, and none of them is garbage yet
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _DAMAGED as error:
        ends = isinstance(error, EOFError) or "truncated" in str(error)
        raise NotPlainError("it ends early" if ends else f"it is no valid pickle ({error})") from error
    finally:
        if collecting:
            gc.enable()


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse the name of a class or function."""
        raise NotPlainError(f"it holds the Python object '{module_name}.{global_name}'")

    def persistent_load(self, _identity: object, /) -> NoReturn:
        """Refuse a reference to an object outside the pickle."""
        raise NotPlainError("it refers to an object outside the file")


Integers: TypeAlias = NDArray[np.int64]

MOST_FILE_BYTES = 4 << 30
"""Largest file that is read. Its objects need several times as much memory."""

MOST_SIZE_BYTES = 1 << 48
"""Largest plausible size of a segment. The sum of all sizes then fits into 64 bits."""

NO_STACK = 0
"""Index of the empty stack."""

REMEDY = "Write one with torch.cuda.memory._dump_snapshot('snapshot.pickle')"

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_JSON = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{\s*\"(?:segments|device_traces|allocator_settings|external_annotations|total_size"
    rb"|segment_type)\"\s*:"
)
_HEAD_BYTES = 4096


class Action(IntEnum):
    """The kinds of events of the allocator."""

    OTHER = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    OOM = 6


_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "free": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_map": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_unmap": Action.SEGMENT_FREE,
    "oom": Action.OOM,
}

INACTIVE, ALLOCATED, AWAITING_FREE = 0, 1, 2
_STATES = {
    "inactive": INACTIVE,
    "active_allocated": ALLOCATED,
    "active_pending_free": AWAITING_FREE,
    "active_awaiting_free": AWAITING_FREE,
}


_Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\")
"""The start of a path of Windows: a drive, or a share of the network."""


class Frame(Struct, frozen=True):
    """A line of a stack.

    Attributes:
        file: The source file, or ``??`` and the like for compiled code. Paths of Windows are written with ``/``, too.
        line: The line; 0 for compiled code.
    """

    file: str = msgspec.field(name="filename", default="")
    line: _Integer = 0
    function: str = msgspec.field(name="name", default="")

    def __post_init__(self) -> None:
        """Write a path of Windows as on other systems."""
        if _WINDOWS_PATH.match(self.file):
            msgspec.structs.force_setattr(self, "file", self.file.replace("\\", "/"))


class Events(Struct, frozen=True):
    """The events of the allocator of one device, in order.

    Attributes:
        address: Address of the block or segment. Of an `Action.OOM` it is the free memory of the device, in bytes.
        size_bytes: The bytes asked for, or those of the segment.
        time_us: Time of each event in microseconds; None in files of torch 2.0.
    """

    action: NDArray[np.int8]
    address: Integers
    size_bytes: Integers
    stream: Integers
    stack: Integers
    time_us: Integers | None

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.action)


_EMPTY = np.empty(0, np.int64)
NO_EVENTS = Events(np.empty(0, np.int8), _EMPTY, _EMPTY, _EMPTY, _EMPTY, None)
"""The events of a device without a history."""


class Segments(Struct, frozen=True):
    """The memory that the allocator took from the devices, at the end.

    Attributes:
        is_large: Whether it is for allocations over 1 MiB.
        pool: Its memory pool; ``0, 0`` for the common one.
    """

    device: Integers
    address: Integers
    size_bytes: Integers
    stream: Integers
    is_large: NDArray[np.bool_]
    pool: tuple[str, ...]
    is_expandable: NDArray[np.bool_]


class Blocks(Struct, frozen=True):
    """The parts of all segments, at the end.

    Attributes:
        segment: Index of the segment of each block.
        requested_bytes: The bytes that were asked for; 0 for an inactive block.
        state: 0 for an inactive block, 1 for an allocated one, 2 for a freed one that another stream may still use.
        stack: Index of the stack that allocated it.
    """

    segment: Integers
    address: Integers
    size_bytes: Integers
    requested_bytes: Integers
    state: NDArray[np.int8]
    stack: Integers


class Annotation(Struct, frozen=True):
    """A named range of time that torch recorded, e.g. ``Optimizer.step#AdamW.step``.

    Attributes:
        end_us: Its end; None if the history ends before it.
    """

    name: str
    start_us: int
    end_us: int | None


class Snapshot(Struct, frozen=True):
    """A memory snapshot.

    Attributes:
        events: The events of each device with events.
        stacks: The distinct stacks, the innermost frame first. The first stack is empty.
    """

    segments: Segments
    blocks: Blocks
    events: Mapping[int, Events]
    stacks: tuple[tuple[Frame, ...], ...]
    annotations: Mapping[int, tuple[Annotation, ...]]
    settings: Mapping[str, str]

    def events_of(self, device: int) -> Events:
        """Return the events of a device."""
        return self.events.get(device, NO_EVENTS)


def is_snapshot(path: str | os.PathLike[str]) -> bool:
    """Return whether a file looks like a memory snapshot, as a pickle or as JSON, by its first bytes."""
    if not Path(path).is_file():  # opening a pipe would wait for its writer
        return False
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return bool(_PICKLE.match(head) or _JSON.match(head))


_Size = Annotated[int, Meta(ge=0, le=MOST_SIZE_BYTES)]
_Time = Annotated[int, Meta(ge=-(1 << 52), le=1 << 52)]  # within 142 years of 1970: any difference fits 64 bits as ns


class _Past(Struct, gc=False):
    """The allocation that made a block, in files of torch 2.0."""

    real_size: _Size | UnsetType = UNSET
    frames: Any = ()


class _Block(Struct, gc=False):
    size: _Size
    state: Literal["inactive", "active_allocated", "active_pending_free", "active_awaiting_free"]
    address: _Integer | UnsetType = UNSET
    requested_size: _Size | UnsetType = UNSET
    frames: Any = UNSET
    history: tuple[_Past, ...] = ()

    def stack(self) -> Any:
        """Return the frames of its allocation."""
        return self.frames if self.frames is not UNSET else self.history[0].frames if self.history else ()

    def requested(self) -> int:
        """Return the bytes that were asked for, as far as known."""
        known = self.requested_size
        if known is UNSET and self.history:
            known = self.history[0].real_size
        return self.size if known is UNSET else known


class _Segment(Struct, gc=False):
    address: _Integer
    total_size: _Size
    device: _Integer = 0
    stream: _Integer = 0
    segment_type: str = "large"
    segment_pool_id: tuple[int, int] = (0, 0)
    is_expandable: bool = False
    blocks: list[_Block] = []


class _Event(Struct, gc=False):
    action: str
    size: _Size
    addr: _Integer | UnsetType = UNSET
    device_free: _Integer = 0
    stream: _Integer = 0
    time_us: _Time | UnsetType = UNSET
    frames: Any = ()


class _Mark(Struct, gc=False):
    """The start or the end of a named range."""

    device: _Integer
    name: str
    time_us: _Time
    stage: Any = None


class _File(Struct):
    segments: list[_Segment]
    device_traces: list[list[_Event]] = []
    external_annotations: list[_Mark] = []
    allocator_settings: dict[Any, Any] = {}


def read_snapshot(path: Path, most_bytes: int = MOST_FILE_BYTES) -> Snapshot:
    """Read a memory snapshot."""
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise TraceError(
                path,
                f"has {format_bytes(size)}, and only snapshots up to {format_bytes(most_bytes)} are read",
                "Record fewer events: torch.cuda.memory._record_memory_history(max_entries=100000)",
            )
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(path, f"cannot be read ({error.strerror})", "Check the path and its permissions") from error
    values = _load(path, data)
    del data
    if isinstance(values, list):  # torch.cuda.memory_snapshot() returns the segments alone
        values = {"segments": values}
    try:
        return _columns(msgspec.convert(values, _File))
    except msgspec.ValidationError as error:
        raise TraceError(path, f"is not a memory snapshot: {error}", REMEDY) from None


def _load(path: Path, data: bytes) -> Any:
    if not data:
        raise TraceError(path, "is empty", REMEDY)
    if _PICKLE.match(data):
        try:
            return load_plain_pickle(data)
        except NotPlainError as error:
            action = "Copy the file again, or write a new one" if "early" in str(error) else REMEDY
            raise TraceError(path, f"cannot be read as a memory snapshot: {error}", action) from error
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(path, f"is neither a pickle nor JSON of a memory snapshot ({error})", REMEDY) from error


def _columns(file: _File) -> Snapshot:
    stacks = _Stacks()
    blocks = _blocks(file.segments, stacks)
    events = {device: _events(trace, stacks) for device, trace in enumerate(file.device_traces) if trace}
    return Snapshot(
        segments=Segments(
            device=_integers(row.device for row in file.segments),
            address=_integers(row.address for row in file.segments),
            size_bytes=_integers(row.total_size for row in file.segments),
            stream=_integers(row.stream for row in file.segments),
            is_large=np.array([row.segment_type != "small" for row in file.segments], bool),
            pool=tuple(", ".join(map(str, row.segment_pool_id)) for row in file.segments),
            is_expandable=np.array([row.is_expandable for row in file.segments], bool),
        ),
        blocks=blocks,
        events=events,
        stacks=stacks.all(),
        annotations=_annotations(file.external_annotations),
        settings={
            name: str(value)
            for name, value in file.allocator_settings.items()
            if type(name) is str and type(value) in (str, int, float, bool) and value not in ("", False)
        },
    )


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _blocks(segments: Sequence[_Segment], stacks: _Stacks) -> Blocks:
    rows = [block for segment in segments for block in segment.blocks]
    owners = _integers(number for number, segment in enumerate(segments) for _ in segment.blocks)
    addresses = [block.address for block in rows if block.address is not UNSET]
    if len(addresses) < len(rows):  # files of torch 2.0: the blocks of a segment follow each other
        addresses = [
            segment.address + before
            for segment in segments
            for before in accumulate((block.size for block in segment.blocks[:-1]), initial=0)
            if segment.blocks
        ]
    state = np.fromiter((_STATES[block.state] for block in rows), np.int8)
    return Blocks(
        segment=owners,
        address=_integers(addresses),
        size_bytes=_integers(block.size for block in rows),
        requested_bytes=np.where(state == INACTIVE, 0, _integers(block.requested() for block in rows)),
        state=state,
        stack=stacks.number(block.stack() for block in rows),
    )


def _events(rows: Sequence[_Event], stacks: _Stacks) -> Events:
    times = [row.time_us for row in rows if row.time_us is not UNSET]
    return Events(
        action=np.fromiter((_ACTIONS.get(row.action, Action.OTHER) for row in rows), np.int8),
        address=_integers(row.device_free if row.addr is UNSET else row.addr for row in rows),
        size_bytes=_integers(row.size for row in rows),
        stream=_integers(row.stream for row in rows),
        stack=stacks.number(row.frames for row in rows),
        time_us=_integers(times) if len(times) == len(rows) else None,
    )


class _Stacks:
    """Numbers the distinct stacks.

    torch shares one object between all stacks with the same frame. So a stack is first looked up by its own identity,
    then by those of its frames, and by their values only when it is new. The time is then that of the file's size,
    however deep a stack is and however many events share it.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): NO_STACK}
        self._known: dict[tuple[int, ...], int] = {}
        self._shared: dict[int, int] = {}

    def number(self, column: Iterable[Any]) -> Integers:
        """Return the number of each stack of a column."""
        return _integers(self._number(frames) if frames else NO_STACK for frames in column)

    def all(self) -> tuple[tuple[Frame, ...], ...]:
        """Return the stacks by number."""
        frames = list(self._frames)
        return tuple(tuple(frames[number] for number in stack) for stack in self._stacks)

    def _number(self, frames: Any) -> int:
        number = self._shared.get(id(frames))
        if number is None:
            number = self._shared[id(frames)] = self._new(frames)
        return number

    def _new(self, frames: Any) -> int:
        try:
            identities = tuple(map(id, frames))
        except TypeError:
            identities = ()
        number = self._known.get(identities)
        if number is None:
            try:
                values = msgspec.convert(frames, list[Frame])
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(f"a stack: {error}") from None
            stack = tuple(self._frames.setdefault(frame, len(self._frames)) for frame in values)
            number = self._stacks.setdefault(stack, len(self._stacks))
            if len(self._known) < 4 * len(self._stacks) + 10_000:  # JSON shares no objects: each stack would be new
                self._known[identities] = number
        return number


def _annotations(rows: Sequence[_Mark]) -> dict[int, tuple[Annotation, ...]]:
    """Join the start and the end of each range. Ranges of one name on a device do not overlap, unless nested."""
    opened: dict[tuple[int, str], list[int]] = {}
    found: dict[int, list[Annotation]] = {}
    for row in rows:
        waiting = opened.setdefault((row.device, row.name), [])
        if row.stage == "START":
            waiting.append(row.time_us)
        elif waiting:
            found.setdefault(row.device, []).append(Annotation(row.name, waiting.pop(), row.time_us))
    for (device, name), starts in opened.items():
        found.setdefault(device, []).extend(Annotation(name, start, None) for start in starts)
    return {device: tuple(sorted(ranges, key=lambda it: it.start_us)) for device, ranges in found.items()}
