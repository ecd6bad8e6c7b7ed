"""Join the events of a device to the lifetime of each allocation, and replay the bytes in use."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.memory_snapshot.snapshot import INACTIVE, NO_STACK, Action, Snapshot

Integers = NDArray[np.int64]

BEFORE = -1
"""Start of an allocation that is older than the history."""


class Lifetimes(Struct, frozen=True):
    """The lifetime of each allocation of a device.

    An allocation is alive after event ``start`` and until event ``end``. So after event k, the allocations with
    ``start <= k < end`` are alive.

    Attributes:
        start: Number of the event that allocated it; -1 for an older allocation.
        end: Number of the event that freed it; the number of events for an allocation that is alive at the end.
        size_bytes: The bytes that were asked for.
        stack: Index of the stack that allocated it.
        kept_stacks: Allocations older than the history with a known stack: they were made while a history was recorded.
        conflicts: Events that contradict others, e.g. two allocations at one address without a free in between.
    """

    start: Integers
    end: Integers
    size_bytes: Integers
    address: Integers
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
    segments, blocks, events = snapshot.segments, snapshot.blocks, snapshot.events_of(device)
    held = np.flatnonzero((blocks.state != INACTIVE) & (segments.device[blocks.segment] == device))
    rows = np.flatnonzero((events.action == Action.ALLOC) | (events.action == Action.FREE_COMPLETED))
    rows = rows[np.argsort(events.address[rows], kind="stable")]
    count = len(rows)
    address, is_alloc = events.address[rows], events.action[rows] == Action.ALLOC
    same = np.append(address[1:] == address[:-1], False)[:count]  # the next row is of the same address
    previous_same, previous_alloc = np.append(False, same)[:count], np.append(False, is_alloc)[:count]

    allocs = np.flatnonzero(is_alloc)
    # An allocation ends with the next event of its address. If that is an allocation too, its free was not recorded.
    ends = np.where(same[allocs], np.append(rows, len(events))[allocs + 1], len(events))
    unended = int((is_alloc & previous_same & previous_alloc).sum())
    lone_frees = np.flatnonzero(~is_alloc & ~(previous_same & previous_alloc))
    repeated = int(previous_same[lone_frees].sum())

    last = np.flatnonzero(is_alloc & ~same)
    older = held[~np.isin(blocks.address[held], address[last])]
    gone = int((~np.isin(address[last], blocks.address[held])).sum())
    made, freed = rows[allocs], rows[lone_frees]
    before, end = np.full(len(freed), BEFORE), np.full(len(older), len(events))
    parts = (
        (made, ends, events.size_bytes[made], events.address[made], events.stack[made]),
        (before, freed, events.size_bytes[freed], events.address[freed], np.full(len(freed), NO_STACK)),
        (
            np.full(len(older), BEFORE),
            end,
            blocks.requested_bytes[older],
            blocks.address[older],
            blocks.stack[older],
        ),
    )
    start, end, size, address, stack = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    kept_stacks = int((blocks.stack[older] != NO_STACK).sum()) if len(events) else 0
    return Lifetimes(start, end, size, address, stack, len(events), kept_stacks, unended + repeated + gone)


def replay_reserved(snapshot: Snapshot, device: int) -> Integers:
    """Return the bytes of all segments before the first event and after each event, counted back from the end."""
    at_end = int(snapshot.segments.size_bytes[snapshot.segments.device == device].sum())
    events = snapshot.events_of(device)
    sign = 1 * (events.action == Action.SEGMENT_ALLOC) - 1 * (events.action == Action.SEGMENT_FREE)
    levels: Integers = np.append(0, np.cumsum(sign * events.size_bytes))
    levels += at_end - levels[-1]
    return levels
