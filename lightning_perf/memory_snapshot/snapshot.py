"""The contents of a memory snapshot as columns: segments, blocks, and the events of each device.

The layout is that of ``torch.cuda.memory._snapshot`` in all releases since 2.0. Older ones have blocks without
addresses and events without times. The stack of such a block is in its ``history``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from lightning_perf.errors import TraceError
from lightning_perf.memory_snapshot.plain_pickle import NotPlainError, load_plain_pickle
from lightning_perf.units import format_bytes

__all__ = [
    "NO_STACK",
    "Action",
    "Annotation",
    "Blocks",
    "Events",
    "Frame",
    "Segments",
    "Snapshot",
    "is_snapshot",
    "read_snapshot",
]

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


@dataclass(frozen=True)
class Frame:
    """A line of a stack.

    Attributes:
        file: The source file, or ``??`` and the like for compiled code.
        line: The line; 0 for compiled code.
        function: The function.
    """

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Events:
    """The events of the allocator of one device, in order.

    Attributes:
        action: An `Action` per event.
        address: Address of the block or segment. Of an `Action.OOM` it is the free memory of the device, in bytes.
        size_bytes: The bytes asked for, or those of the segment.
        stream: The stream.
        stack: Index of the stack.
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


@dataclass(frozen=True)
class Segments:
    """The memory that the allocator took from the devices, at the end.

    Attributes:
        device: The device of each segment.
        address: Its address.
        size_bytes: Its size.
        stream: The stream that it belongs to.
        is_large: Whether it is for allocations over 1 MiB.
        pool: Its memory pool; ``0, 0`` for the common one.
        is_expandable: Whether it can grow.
    """

    device: Integers
    address: Integers
    size_bytes: Integers
    stream: Integers
    is_large: NDArray[np.bool_]
    pool: tuple[str, ...]
    is_expandable: NDArray[np.bool_]


@dataclass(frozen=True)
class Blocks:
    """The parts of all segments, at the end.

    Attributes:
        segment: Index of the segment of each block.
        address: Its address.
        size_bytes: Its size.
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


@dataclass(frozen=True)
class Annotation:
    """A named range of time that torch recorded, e.g. ``Optimizer.step#AdamW.step``.

    Attributes:
        name: The name.
        start_us: Its start.
        end_us: Its end; None if the history ends before it.
    """

    name: str
    start_us: int
    end_us: int | None


@dataclass(frozen=True)
class Snapshot:
    """A memory snapshot.

    Attributes:
        segments: All segments.
        blocks: All blocks.
        events: The events of each device with events.
        stacks: The distinct stacks, the innermost frame first. The first stack is empty.
        annotations: Named ranges by device.
        settings: The allocator's settings by name.
    """

    segments: Segments
    blocks: Blocks
    events: Mapping[int, Events]
    stacks: tuple[tuple[Frame, ...], ...]
    annotations: Mapping[int, tuple[Annotation, ...]]
    settings: Mapping[str, str]


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


def read_snapshot(path: Path) -> Snapshot:
    """Read a memory snapshot.

    Args:
        path: A pickle of ``torch.cuda.memory._dump_snapshot`` or ``_snapshot``, or the same values as JSON.

    Raises:
        TraceError: The file cannot be read, is damaged, or is no snapshot.
        MemoryError: It needs more memory than this process may use.
    """
    try:
        size = path.stat().st_size
        if size > MOST_FILE_BYTES:
            raise TraceError(
                path,
                f"has {format_bytes(size)}, and only snapshots up to {format_bytes(MOST_FILE_BYTES)} are read",
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
        return _Parser().parse(values)
    except _LayoutError as error:
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


class _LayoutError(Exception):
    """A value is not as torch writes it. The message is a clause."""


class _Parser:
    """Turns the values of a snapshot into columns, and checks the type of each value that is used."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str], int] = {}
        self._frame_of: dict[int, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): NO_STACK}
        self._known: dict[tuple[int, ...], int] = {}

    def parse(self, values: Any) -> Snapshot:
        """Return the snapshot."""
        top = _dict(values, "the file")
        if "segments" not in top:
            raise _LayoutError("it has no member 'segments'")
        segments, blocks = self._segments(_dicts(top["segments"], "segments"))
        traces = _list(top.get("device_traces", []), "device_traces")
        events = {
            device: self._events(_dicts(trace, f"device_traces[{device}]"), f"device_traces[{device}]")
            for device, trace in enumerate(traces)
            if trace
        }
        frames = [Frame(*key) for key in self._frames]
        return Snapshot(
            segments=segments,
            blocks=blocks,
            events=events,
            stacks=tuple(tuple(frames[number] for number in stack) for stack in self._stacks),
            annotations=_annotations(_dicts(top.get("external_annotations", []), "external_annotations")),
            settings=_settings(top.get("allocator_settings", {})),
        )

    def _segments(self, rows: list[dict[str, Any]]) -> tuple[Segments, Blocks]:
        blocks: list[dict[str, Any]] = []
        counts: list[int] = []
        for row in rows:
            inside = _dicts(row.get("blocks", []), "segments[].blocks")
            blocks += inside
            counts.append(len(inside))
        kinds = _texts(rows, "segment_type", "segments", "large")
        segments = Segments(
            device=_integers(rows, "device", "segments", 0),
            address=_integers(rows, "address", "segments"),
            size_bytes=_integers(rows, "total_size", "segments"),
            stream=_integers(rows, "stream", "segments", 0),
            is_large=np.array([kind != "small" for kind in kinds], bool),
            pool=tuple(_pool(row.get("segment_pool_id", (0, 0))) for row in rows),
            is_expandable=np.array([row.get("is_expandable") is True for row in rows], bool),
        )
        owner = np.repeat(np.arange(len(rows)), counts)
        sizes = _integers(blocks, "size", "segments[].blocks")
        states = _texts(blocks, "state", "segments[].blocks")
        try:
            state = np.array([_STATES[name] for name in states], np.int8)
        except KeyError as error:
            raise _LayoutError(f"a block has the unknown state {_quoted(error.args[0])}") from None
        before = np.cumsum(sizes) - sizes
        starts = np.cumsum(counts) - counts if counts else np.empty(0, np.int64)
        first = before[np.minimum(starts, max(len(before) - 1, 0))] if len(before) else np.zeros(len(counts), np.int64)
        computed = segments.address[owner] + before - first[owner]
        given = len(blocks) > 0 and all("address" in block for block in blocks)
        requested = _checked([_requested(block) for block in blocks], "requested_size", "segments[].blocks")
        return segments, Blocks(
            segment=owner,
            address=_integers(blocks, "address", "segments[].blocks") if given else computed,
            size_bytes=sizes,
            requested_bytes=np.where(state == INACTIVE, 0, requested),
            state=state,
            stack=self._stack_column([_block_frames(block) for block in blocks]),
        )

    def _events(self, rows: list[dict[str, Any]], where: str) -> Events:
        names = _texts(rows, "action", where)
        action = np.fromiter((_ACTIONS.get(name, Action.OTHER) for name in names), np.int8, len(rows))
        timed = all("time_us" in row for row in rows)
        address = (
            _integers(rows, "addr", where)
            if all("addr" in row for row in rows)
            else _checked([row.get("addr", row.get("device_free", 0)) for row in rows], "addr", where)
        )
        return Events(
            action=action,
            address=address,
            size_bytes=_integers(rows, "size", where),
            stream=_integers(rows, "stream", where, 0),
            stack=self._stack_column([row.get("frames", ()) for row in rows]),
            time_us=_integers(rows, "time_us", where) if timed else None,
        )

    def _stack_column(self, column: Sequence[Any]) -> Integers:
        """Number the distinct stacks.

        torch shares one object between all stacks with the same frame. So a stack is first looked up by the identities
        of its frames, which is quick, and by their values only when it is new.
        """
        known, stacks = self._known, np.zeros(len(column), np.int64)
        for row, frames in enumerate(column):
            if not frames:
                continue
            if type(frames) not in (list, tuple):
                raise _LayoutError(f"a stack is not a list but {_kind(frames)}")
            identities = tuple(map(id, frames))
            number = known.get(identities)
            if number is None:
                stack = tuple(map(self._frame_number, frames))
                number = self._stacks.setdefault(stack, len(self._stacks))
                if len(known) < 4 * len(self._stacks) + 10_000:  # JSON shares no objects: each stack would be new
                    known[identities] = number
            stacks[row] = number
        return stacks

    def _frame_number(self, frame: Any) -> int:
        if type(frame) is not dict:
            raise _LayoutError(f"a frame is not a dictionary but {_kind(frame)}")
        key = (frame.get("filename", ""), frame.get("line", 0), frame.get("name", ""))
        if tuple(map(type, key)) != (str, int, str):
            raise _LayoutError("a frame has a file name, line or function of another type")
        return self._frames.setdefault(key, len(self._frames))


def _block_frames(block: dict[str, Any]) -> Any:
    if "frames" in block:
        return block["frames"]
    history = block.get("history")
    return _dict(history[0], "a block's history").get("frames", ()) if type(history) is list and history else ()


def _requested(block: dict[str, Any]) -> Any:
    history = block.get("history")
    known = _dict(history[0], "a block's history").get("real_size") if type(history) is list and history else None
    return block.get("requested_size", block.get("size") if known is None else known)


def _pool(value: Any) -> str:
    if type(value) in (list, tuple) and len(value) == 2 and all(type(part) is int for part in value):
        return f"{value[0]}, {value[1]}"
    raise _LayoutError(f"the pool of a segment is not a pair of integers but {_kind(value)}")


def _annotations(rows: list[dict[str, Any]]) -> dict[int, tuple[Annotation, ...]]:
    """Join the start and the end of each range. Ranges of one name on a device do not overlap, unless nested."""
    opened: dict[tuple[int, str], list[int]] = {}
    found: dict[int, list[Annotation]] = {}
    for row in rows:
        device, name, time, stage = (row.get(key) for key in ("device", "name", "time_us", "stage"))
        if type(device) is not int or type(name) is not str or type(time) is not int:
            raise _LayoutError("an entry of 'external_annotations' has members of another type")
        waiting = opened.setdefault((device, name), [])
        if stage == "START":
            waiting.append(time)
        elif waiting:
            found.setdefault(device, []).append(Annotation(name, waiting.pop(), time))
    for (device, name), starts in opened.items():
        found.setdefault(device, []).extend(Annotation(name, start, None) for start in starts)
    return {device: tuple(sorted(ranges, key=lambda it: it.start_us)) for device, ranges in found.items()}


def _settings(values: Any) -> dict[str, str]:
    """Return the settings that are simple values and say something."""
    plain = {name: value for name, value in _dict(values, "allocator_settings").items() if type(name) is str}
    return {
        name: str(value)
        for name, value in plain.items()
        if type(value) in (str, int, float, bool) and value not in ("", False)
    }


def _dict(value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise _LayoutError(f"{where} is not a dictionary but {_kind(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if type(value) not in (list, tuple):
        raise _LayoutError(f"'{where}' is not a list but {_kind(value)}")
    return list(value)


def _dicts(value: Any, where: str) -> list[dict[str, Any]]:
    rows = _list(value, where)
    if not set(map(type, rows)) <= {dict}:
        raise _LayoutError(f"'{where}' has an entry that is not a dictionary")
    return rows


def _values(rows: list[dict[str, Any]], key: str, where: str, default: Any) -> list[Any]:
    pick: Callable[[dict[str, Any]], Any] = itemgetter(key)
    try:
        return list(map(pick, rows))
    except KeyError:
        if default is None:
            raise _LayoutError(f"an entry of '{where}' has no member '{key}'") from None
        return [row.get(key, default) for row in rows]


def _integers(rows: list[dict[str, Any]], key: str, where: str, default: int | None = None) -> Integers:
    return _checked(_values(rows, key, where, default), key, where)


def _checked(values: list[Any], key: str, where: str) -> Integers:
    if not set(map(type, values)) <= {int}:
        other = next(value for value in values if type(value) is not int)
        raise _LayoutError(f"'{key}' of an entry of '{where}' is not an integer but {_kind(other)}")
    least, most = (0, MOST_SIZE_BYTES) if key.endswith("size") else (-(1 << 63), (1 << 63) - 1)
    if values and not (least <= min(values) and max(values) <= most):
        raise _LayoutError(f"'{key}' of an entry of '{where}' is out of range")
    return np.array(values, np.int64)


def _texts(rows: list[dict[str, Any]], key: str, where: str, default: str | None = None) -> list[str]:
    values = _values(rows, key, where, default)
    if not set(map(type, values)) <= {str}:
        other = next(value for value in values if type(value) is not str)
        raise _LayoutError(f"'{key}' of an entry of '{where}' is not text but {_kind(other)}")
    return values


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"


def _quoted(text: str) -> str:
    return repr(text[:40])
