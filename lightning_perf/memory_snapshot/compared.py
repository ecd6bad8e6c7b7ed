"""Compare two memory snapshots: which categories and lines grew."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_perf import __version__
from lightning_perf.documents import TOP, Format, LongDocument, PageDocument, SavedDocument
from lightning_perf.memory_snapshot.allocations import CATEGORIES
from lightning_perf.memory_snapshot.document import DeviceMemory, MemoryGroup, MemoryReport, SnapshotError
from lightning_perf.report.compared import join_notes

if TYPE_CHECKING:
    from lightning_perf.page.html import Kind
    from lightning_perf.show.blocks import Block, Parts

SCHEMA_VERSION = 1
"""Version of the document's layout. Every change that an old reader would misread raises it."""

_NUMBERED = re.compile(r"^(?P<file>.*):\d+ (?P<function>.*)$")


class BytesChange(Struct, frozen=True):
    """A number of bytes in both snapshots.

    Attributes:
        name: Its name, e.g. ``allocated at the peak`` or a category.
        before_bytes: In the first snapshot.
        after_bytes: In the second snapshot.
    """

    name: str
    before_bytes: int
    after_bytes: int


class LineChange(Struct, frozen=True):
    """The memory of a line in both snapshots.

    Attributes:
        line: The line, as in `MemoryGroup`; only file and function if its line number changed.
        module: Class of the innermost module; None if unknown.
        category: The category.
        before_peak_bytes: Its bytes at the peak of the first snapshot.
        after_peak_bytes: Its bytes at the peak of the second snapshot.
        before_end_bytes: Its bytes at the end of the first snapshot.
        after_end_bytes: Its bytes at the end of the second snapshot.
    """

    line: str
    module: str | None
    category: str
    before_peak_bytes: int
    after_peak_bytes: int
    before_end_bytes: int
    after_end_bytes: int


class DeviceChange(Struct, frozen=True):
    """The changes of a device.

    Attributes:
        device: Its number.
        totals: The allocated and reserved bytes at the peak and at the end.
        categories: The bytes of each category at the peak.
        lines: The lines, the largest change at the peak first.
    """

    device: int
    totals: tuple[BytesChange, ...]
    categories: tuple[BytesChange, ...]
    lines: tuple[LineChange, ...]


class MemoryDiff(LongDocument, PageDocument, SavedDocument, frozen=True):
    """The changes from one memory snapshot to another.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        before: The first file.
        after: The second file.
        devices: The devices of both snapshots.
        notes: Remarks to read first.
    """

    schema_version: int
    tool_version: str
    before: str
    after: str
    devices: tuple[DeviceChange, ...]
    notes: tuple[str, ...]

    _format = Format(
        "comparison of two memory snapshots", "comparison", SCHEMA_VERSION, "compare them again", SnapshotError
    )

    def blocks(self, top: int = TOP) -> Iterator[Block]:
        """Yield a sentence per device, then its tables."""
        from lightning_perf.memory_snapshot.blocks import snapshot_diff_blocks

        return snapshot_diff_blocks(self, top)

    def _page(self) -> tuple[Kind, str]:
        return "snapshot-diff", f"{Path(self.before).name} and {Path(self.after).name}"

    def _parts(self) -> Parts:
        from lightning_perf.show.blocks import EVERY_ROW

        return {"changes": self.blocks(EVERY_ROW)}


def compare_snapshots(before: MemoryReport, after: MemoryReport) -> MemoryDiff:
    """Compare two snapshots device by device."""
    first = {device.device: device for device in before.devices}
    second = {device.device: device for device in after.devices}
    notes = [
        *join_notes(before.notes, after.notes),
        *(
            f"Device {device} is in one snapshot only, so it is not compared."
            for device in sorted(first.keys() ^ second.keys())
        ),
    ]
    return MemoryDiff(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        before=before.source,
        after=after.source,
        devices=tuple(_compare(first[device], second[device]) for device in sorted(first.keys() & second.keys())),
        notes=tuple(notes),
    )


def _compare(before: DeviceMemory, after: DeviceMemory) -> DeviceChange:
    totals = (
        BytesChange("allocated at the peak", before.peak.allocated_bytes, after.peak.allocated_bytes),
        BytesChange("reserved at the peak", before.peak.reserved_bytes, after.peak.reserved_bytes),
        BytesChange("allocated at the end", before.end.allocated_bytes, after.end.allocated_bytes),
        BytesChange("reserved at the end", before.end.reserved_bytes, after.end.reserved_bytes),
        BytesChange("free blocks at the end", before.inactive_bytes, after.inactive_bytes),
    )
    first, second = ({row.category: row.bytes for row in side.peak.categories} for side in (before, after))
    categories = tuple(
        BytesChange(name, first.get(name, 0), second.get(name, 0)) for name in CATEGORIES if name in {*first, *second}
    )
    return DeviceChange(before.device, totals, categories, _lines(before.groups, after.groups))


_Key = tuple[str, str | None, str]


def _lines(before: Iterable[MemoryGroup], after: Iterable[MemoryGroup]) -> tuple[LineChange, ...]:
    """Join equal lines. Edits above a line change its number, so the other lines are joined by file and function."""
    sides = [_by_key(before), _by_key(after)]
    common = sides[0].keys() & sides[1].keys()
    moved = [{_short(key) for key in side if key not in common} for side in sides]
    rows: dict[_Key, tuple[list[int], list[int]]] = defaultdict(lambda: ([0, 0], [0, 0]))
    for number, side in enumerate(sides):
        for key, sizes in side.items():
            short = _short(key)
            found = rows[short if key not in common and short in moved[0] & moved[1] else key][number]
            found[0] += sizes[0]
            found[1] += sizes[1]
    lines = [
        LineChange(*key, before_peak, after_peak, before_end, after_end)
        for key, ((before_peak, before_end), (after_peak, after_end)) in rows.items()
        if before_peak or after_peak or before_end or after_end
    ]

    def order(row: LineChange) -> tuple[int, int, str, str]:
        peak_change = abs(row.after_peak_bytes - row.before_peak_bytes)
        return -peak_change, -abs(row.after_end_bytes - row.before_end_bytes), row.line, row.category

    return tuple(sorted(lines, key=order))


def _by_key(groups: Iterable[MemoryGroup]) -> dict[_Key, list[int]]:
    """Return the bytes at the peak and at the end of each line."""
    sums: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for group in groups:
        sizes = sums[group.line, group.module, group.category]
        sizes[0] += group.peak_bytes
        sizes[1] += group.end_bytes
    return sums


def _short(key: _Key) -> _Key:
    """Return a line by its file and function, without its number."""
    line, module, category = key
    found = _NUMBERED.match(line)
    return (f"{found['file']} {found['function']}" if found else line, module, category)
