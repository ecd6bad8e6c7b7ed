"""Join the events of a device to the lifetime of each allocation, and replay the bytes in use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_perf.memory_snapshot.snapshot import INACTIVE, Action, Snapshot

Integers = NDArray[np.int64]

BEFORE = -1
"""Start of an allocation that is older than the history."""


@dataclass(frozen=True)
class Lifetimes:
    """The lifetime of each allocation of a device.

    An allocation is alive after event ``start`` and until event ``end``. So after event k, the allocations with
    ``start <= k < end`` are alive.

    Attributes:
        start: Number of the event that allocated it; -1 for an older allocation.
        end: Number of the event that freed it; the number of events for an allocation that is alive at the end.
        size_bytes: The bytes that were asked for.
        stream: Its stream; -1 if unknown.
        stack: Index of the stack that allocated it.
        kept_stacks: Allocations older than the history with a known stack: they were made while a history was recorded.
        conflicts: Events that contradict others, e.g. two allocations at one address without a free in between.
    """

    start: Integers
    end: Integers
    size_bytes: Integers
    address: Integers
    stream: Integers
    stack: Integers
    events: int
    kept_stacks: int
    conflicts: int

    def __len__(self) -> int:
        """Return the number of allocations."""
        return len(self.start)

    def levels(self, rows: NDArray[np.bool_] | None = None) -> Integers:
        """Return the bytes in use before the first event and after each event.

        Args:
            rows: The allocations to count; all of them by default.
        """
        start, end, size = (
            column if rows is None else column[rows] for column in (self.start, self.end, self.size_bytes)
        )
        change = np.zeros(self.events + 2, np.int64)
        np.add.at(change, start + 1, size)
        np.add.at(change, end + 1, -size)
        return np.cumsum(change)[: self.events + 1]

    def alive(self, moment: int) -> NDArray[np.bool_]:
        """Return which allocations are alive after an event; -1 for the moment before the first event."""
        return (self.start <= moment) & (self.end > moment)


def find_lifetimes(snapshot: Snapshot, device: int) -> Lifetimes:
    """Find the lifetime of each allocation of a device.

    A free without an allocation ends one that is older than the history, and so is a block at the end without an
    allocation.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    held = np.flatnonzero((blocks.state != INACTIVE) & (segments.device[blocks.segment] == device))
    events = snapshot.events.get(device)
    if events is None:
        return _merge(0, _older(blocks.address[held], blocks.requested_bytes[held], blocks.stack[held], snapshot, held))
    rows = np.flatnonzero((events.action == Action.ALLOC) | (events.action == Action.FREE_COMPLETED))
    rows = rows[np.argsort(events.address[rows], kind="stable")]
    address, is_alloc = events.address[rows], events.action[rows] == Action.ALLOC
    same = np.r_[address[1:] == address[:-1], False] if len(rows) else np.empty(0, bool)
    next_is_alloc = np.r_[is_alloc[1:], False] if len(rows) else np.empty(0, bool)
    previous_same = np.r_[False, same[:-1]] if len(rows) else np.empty(0, bool)
    previous_alloc = np.r_[False, is_alloc[:-1]] if len(rows) else np.empty(0, bool)

    allocs = np.flatnonzero(is_alloc)
    # An allocation ends with the next event of its address. If that is an allocation too, its free was not recorded.
    ends = np.where(same[allocs], rows[np.minimum(allocs + 1, max(len(rows) - 1, 0))], len(events))
    unended = int((same[allocs] & next_is_alloc[allocs]).sum())
    lone_frees = np.flatnonzero(~is_alloc & ~(previous_same & previous_alloc))
    repeated = int(previous_same[lone_frees].sum())

    last = np.flatnonzero(is_alloc & ~same)
    known = np.isin(blocks.address[held], address[last])
    gone = int((~np.isin(address[last], blocks.address[held])).sum())
    older = held[~known]
    made = rows[allocs]
    freed = rows[lone_frees]
    return _merge(
        len(events),
        (
            made,
            ends,
            events.size_bytes[made],
            events.address[made],
            events.stream[made],
            events.stack[made],
        ),
        (
            np.full(len(freed), BEFORE),
            freed,
            events.size_bytes[freed],
            events.address[freed],
            events.stream[freed],
            np.zeros(len(freed), np.int64),
        ),
        _older(blocks.address[older], blocks.requested_bytes[older], blocks.stack[older], snapshot, older, len(events)),
        kept_stacks=int((blocks.stack[older] > 0).sum()),
        conflicts=unended + repeated + gone,
    )


def _older(
    address: Integers, size: Integers, stack: Integers, snapshot: Snapshot, rows: Integers, end: int = 0
) -> tuple[Integers, ...]:
    stream = snapshot.segments.stream[snapshot.blocks.segment[rows]]
    return np.full(len(rows), BEFORE), np.full(len(rows), end), size, address, stream, stack


def _merge(events: int, *parts: tuple[Integers, ...], kept_stacks: int = 0, conflicts: int = 0) -> Lifetimes:
    start, end, size, address, stream, stack = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Lifetimes(start, end, size, address, stream, stack, events, kept_stacks, conflicts)


def replay_reserved(snapshot: Snapshot, device: int) -> Integers:
    """Return the bytes of all segments before the first event and after each event, counted back from the end."""
    at_end = int(snapshot.segments.size_bytes[snapshot.segments.device == device].sum())
    events = snapshot.events.get(device)
    if events is None:
        return np.array([at_end], np.int64)
    change = np.zeros(len(events) + 1, np.int64)
    change[1:][events.action == Action.SEGMENT_ALLOC] = events.size_bytes[events.action == Action.SEGMENT_ALLOC]
    change[1:][events.action == Action.SEGMENT_FREE] = -events.size_bytes[events.action == Action.SEGMENT_FREE]
    levels: Integers = np.cumsum(change)
    levels += at_end - levels[-1]
    return levels
