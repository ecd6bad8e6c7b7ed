"""Find the free memory of a snapshot and whether it is in usable pieces: by pool, by segment, and at an error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import sum_by
from lightning_perf.memory_snapshot.allocations import CATEGORIES, FREE, MIXED, Lifetimes
from lightning_perf.memory_snapshot.document import Pool, Run, SegmentMap
from lightning_perf.memory_snapshot.snapshot import INACTIVE, Action, Segments, Snapshot

Integers = NDArray[np.int64]

ROUNDING_BYTES = 512
"""The allocator rounds every allocation up to a multiple of this."""

SMALL_SEGMENT_BYTES = 2 << 20
"""Segments of this size serve allocations of at most `MOST_SMALL_BYTES` only."""

MOST_SMALL_BYTES = 1 << 20

MOST_SEGMENTS = 40
"""Segments that the document describes one by one."""

CELLS = 120
"""A segment with more runs is described by equal parts."""

_MIXED_SHARE = 0.9


def find_pools(snapshot: Snapshot, device: int) -> tuple[Pool, ...]:
    """Return the free memory by stream, size class and pool, the pool with most memory first."""
    segments = snapshot.segments
    used, free, largest = _per_segment(snapshot)
    groups: dict[tuple[int, str, str], list[int]] = {}
    for number in np.flatnonzero(segments.device == device).tolist():
        key = (int(segments.stream[number]), _size_class(segments, number), segments.pool[number])
        groups.setdefault(key, []).append(number)
    pools = []
    for (stream, size, pool), members in groups.items():
        rows = np.array(members)
        empty = used[rows] == 0
        pools.append(
            Pool(
                stream=stream,
                size=size,
                pool=pool,
                segments=len(rows),
                reserved_bytes=int(segments.size_bytes[rows].sum()),
                free_bytes=int(free[rows].sum()),
                largest_free_bytes=int(largest[rows].max(initial=0)),
                releasable_bytes=int(free[rows][empty].sum()),
                fragmented_bytes=int(free[rows][~empty].sum()),
            )
        )
    return tuple(sorted(pools, key=lambda it: (-it.reserved_bytes, it.stream, it.size, it.pool)))


def map_segments(
    snapshot: Snapshot, device: int, lifetimes: Lifetimes, category: NDArray[np.int8]
) -> tuple[tuple[SegmentMap, ...], int]:
    """Describe the largest segments and their contents at the end.

    Returns:
        The segments, the largest first, and the number of segments that are left out.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    used, _, largest = _per_segment(snapshot)
    rows = np.flatnonzero(segments.device == device)
    rows = rows[np.argsort(-segments.size_bytes[rows], kind="stable")]
    at_end = np.flatnonzero(lifetimes.end >= lifetimes.events)
    at_end = at_end[np.argsort(lifetimes.address[at_end], kind="stable")]
    addresses, kinds = lifetimes.address[at_end], category[at_end]
    maps = []
    for number in rows[:MOST_SEGMENTS].tolist():
        inside = np.flatnonzero(blocks.segment == number)
        inside = inside[np.argsort(blocks.address[inside], kind="stable")]
        names = np.full(len(inside), len(CATEGORIES), np.int64)  # the number after the last category is for free blocks
        active = blocks.state[inside] != INACTIVE
        if len(addresses):
            place = np.minimum(np.searchsorted(addresses, blocks.address[inside]), len(addresses) - 1)
            names[active] = kinds[place][active]
        maps.append(
            SegmentMap(
                address=f"{int(segments.address[number]):x}",
                stream=int(segments.stream[number]),
                size=_size_class(segments, number),
                pool=segments.pool[number],
                is_expandable=bool(segments.is_expandable[number]),
                reserved_bytes=int(segments.size_bytes[number]),
                used_bytes=int(used[number]),
                largest_free_bytes=int(largest[number]),
                runs=_runs(blocks.size_bytes[inside], names),
            )
        )
    return tuple(maps), max(0, len(rows) - MOST_SEGMENTS)


def _runs(sizes: Integers, names: Integers) -> tuple[Run, ...]:
    """Join neighbors of one category, and describe a segment with many runs by equal parts."""
    if not len(sizes):
        return ()
    label = (*CATEGORIES, FREE)
    starts = np.flatnonzero(np.r_[True, np.diff(names) != 0])
    totals = np.add.reduceat(sizes, starts)
    if len(starts) <= CELLS:
        return tuple(Run(label[names[at]], int(total)) for at, total in zip(starts, totals, strict=True))
    edges = np.r_[0, np.cumsum(totals)]
    cuts = np.linspace(0, edges[-1], CELLS + 1).astype(np.int64)
    # The bytes of each category below each cut, so that the bytes of a part are a difference.
    covered = np.zeros((len(label), CELLS + 1))
    for number in range(len(label)):
        below = np.r_[0, np.cumsum(np.where(names[starts] == number, totals, 0))]
        covered[number] = np.interp(cuts, edges, below)
    parts = np.diff(covered, axis=1)
    top = parts.argmax(axis=0)
    whole = np.diff(cuts)
    mixed = parts[top, np.arange(CELLS)] < _MIXED_SHARE * whole
    shown = [MIXED if many else label[number] for many, number in zip(mixed, top, strict=True)]
    joined: list[Run] = []
    for name, size in zip(shown, whole.tolist(), strict=True):
        if joined and joined[-1].category == name:
            joined[-1] = Run(name, joined[-1].bytes + size)
        else:
            joined.append(Run(name, size))
    return tuple(joined)


def _per_segment(snapshot: Snapshot) -> tuple[Integers, Integers, Integers]:
    """Return the used bytes, the free bytes and the largest free block of each segment."""
    blocks, count = snapshot.blocks, len(snapshot.segments.device)
    active, largest = blocks.state != INACTIVE, np.zeros(count, np.int64)
    used, free = (sum_by(blocks.segment[rows], blocks.size_bytes[rows], count) for rows in (active, ~active))
    np.maximum.at(largest, blocks.segment[~active], blocks.size_bytes[~active])
    return used, free, largest


def _size_class(segments: Segments, number: int) -> str:
    return "large" if segments.is_large[number] else "small"


def find_gaps(
    snapshot: Snapshot, device: int, lifetimes: Lifetimes, moment: int, requested_bytes: int, stream: int
) -> tuple[int, int]:
    """Find the free parts of the segments that could serve an allocation, after an event.

    The segments of that moment follow from those at the end and from the events after it. The allocator
    may leave a block larger than its rounded size, so the results are upper bounds.

    Returns:
        The bytes of the largest free part, and of all free parts together.
    """
    segments = _segments_at(snapshot, device, moment, stream)
    small = requested_bytes <= MOST_SMALL_BYTES
    alive = np.flatnonzero(lifetimes.alive(moment))
    alive = alive[np.argsort(lifetimes.address[alive], kind="stable")]
    start = lifetimes.address[alive]
    size = -(-lifetimes.size_bytes[alive] // ROUNDING_BYTES) * ROUNDING_BYTES
    largest = total = 0
    for address, length in segments:
        if (length <= SMALL_SEGMENT_BYTES) != small:
            continue
        inside = slice(*np.searchsorted(start, (address, address + length)).tolist())
        begins = np.r_[start[inside], address + length]
        ends = np.r_[address, start[inside] + size[inside]]
        gaps = np.maximum(begins - ends, 0)
        largest, total = max(largest, int(gaps.max())), total + int(gaps.sum())
    return largest, total


def _segments_at(snapshot: Snapshot, device: int, moment: int, stream: int) -> list[tuple[int, int]]:
    """Return address and size of the segments of a stream after an event, neighbors of an expandable one joined."""
    segments = snapshot.segments
    rows = np.flatnonzero((segments.device == device) & (segments.stream == stream))
    ranges = {int(segments.address[row]): int(segments.size_bytes[row]) for row in rows}
    events = snapshot.events_of(device)
    is_segment = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_FREE)
    later = np.flatnonzero(is_segment & (events.stream == stream))
    for event in later[later > moment][::-1].tolist():
        address, size = int(events.address[event]), int(events.size_bytes[event])
        if events.action[event] == Action.SEGMENT_FREE:
            ranges[address] = ranges.get(address, 0) + size
        else:
            _remove(ranges, address, size)
    return _joined(ranges, expandable=bool(segments.is_expandable.any()))


def _remove(ranges: dict[int, int], address: int, size: int) -> None:
    """Remove a range of addresses from the ranges that hold it. A part of an expandable segment splits it."""
    for start, length in list(ranges.items()):
        if start <= address < start + length:
            del ranges[start]
            if address > start:
                ranges[start] = address - start
            if address + size < start + length:
                ranges[address + size] = start + length - address - size
            return


def _joined(ranges: dict[int, int], *, expandable: bool) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for address, size in sorted(ranges.items()):
        if expandable and result and sum(result[-1]) == address:
            result[-1] = (result[-1][0], result[-1][1] + size)
        else:
            result.append((address, size))
    return result
