"""Analyze a memory snapshot, in a worker process with limits: who held the memory at the peak and at the end."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightning_perf import __version__
from lightning_perf.analysis.intervals import sum_by
from lightning_perf.errors import TraceError
from lightning_perf.memory_snapshot.allocations import (
    CATEGORIES,
    PHASES,
    Site,
    categorize,
    describe_stack,
    find_lifetimes,
    name_line,
    phases_of,
    replay_reserved,
    step_starts,
)
from lightning_perf.memory_snapshot.document import (
    SCHEMA_VERSION,
    CategoryBytes,
    Curve,
    CurveArea,
    DeviceMemory,
    Growth,
    GrowthRow,
    History,
    MemoryGroup,
    MemoryReport,
    Moment,
    OutOfMemory,
)
from lightning_perf.memory_snapshot.free_memory import find_gaps, find_pools, map_segments
from lightning_perf.memory_snapshot.snapshot import (
    INACTIVE,
    NO_STACK,
    Action,
    Snapshot,
    read_snapshot,
)
from lightning_perf.units import counted, format_bytes
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.exec_command import die_with
from lightning_perf.workers.limits import MEMORY_SHARE, free_bytes, limit_memory
from lightning_perf.workers.process import WorkerError, WorkerExitError, WorkerProcess

MOST_GROUPS = 300
"""Groups in the document, the largest ones."""

POINTS = 400
"""Stretches of events that the curve has a point for."""

CURVE_LINES = 5
MOST_ERRORS = 20

LEAST_STEPS = 4
"""Complete steps that growth needs, after the first steps, in which an optimizer makes its state."""

LEAST_GROWTH_BYTES = 1 << 20
GROWTH_ROWS = 5


def build_report(snapshot: Snapshot, source: Path) -> MemoryReport:
    """Return the report of a snapshot."""
    sites = tuple(map(describe_stack, snapshot.stacks))
    numbers = sorted({*snapshot.segments.device.tolist(), *snapshot.events})
    analyses = [_Device(snapshot, number, sites) for number in numbers]
    return MemoryReport(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        source=str(source),
        devices=tuple(analysis.result() for analysis in analyses),
        settings=dict(snapshot.settings),
        notes=tuple(note for analysis in analyses for note in analysis.notes(len(analyses) > 1)),
    )


class _Device:
    """The analysis of one device."""

    def __init__(self, snapshot: Snapshot, device: int, sites: Sequence[Site]) -> None:
        self._snapshot, self._device, self._sites = snapshot, device, sites
        self._events = snapshot.events_of(device)
        self._lifetimes = find_lifetimes(snapshot, device)
        self._phase, self._assumed = phases_of(
            self._lifetimes, sites, snapshot.stacks, self._events, snapshot.annotations.get(device, ())
        )
        self._category = categorize(self._lifetimes, self._phase, sites)
        self._levels = self._lifetimes.levels()
        self._reserved = replay_reserved(snapshot, device)
        self._peak = int(self._levels.argmax())
        # Stacks that differ in other frames share the number of their line and module.
        lines: dict[tuple[str, str, str | None], tuple[int, Site]] = {}
        of_stack = [lines.setdefault((site.line, site.file, site.module), (len(lines), site))[0] for site in sites]
        self._line = np.array(of_stack, np.int64)[self._lifetimes.stack]
        self._lines = [site for _, site in lines.values()]
        self._errors = np.flatnonzero(self._events.action == Action.OOM)

    def result(self) -> DeviceMemory:
        """Return the result."""
        snapshot, device, lifetimes = self._snapshot, self._device, self._lifetimes
        blocks = snapshot.blocks
        own = snapshot.segments.device[blocks.segment] == device
        groups = self._groups()
        segments, left_out = map_segments(snapshot, device, lifetimes, self._category)
        inactive = own & (blocks.state == INACTIVE)

        return DeviceMemory(
            device=device,
            reserved_bytes=int(self._reserved[-1]),
            inactive_bytes=int(blocks.size_bytes[inactive].sum()),
            history=self._history(),
            peak=self._moment("peak", self._peak),
            end=self._moment("end", lifetimes.events),
            out_of_memory=tuple(self._out_of_memory(event) for event in self._errors[-MOST_ERRORS:].tolist()),
            groups=groups[:MOST_GROUPS],
            left_out_groups=max(0, len(groups) - MOST_GROUPS),
            pools=find_pools(snapshot, device),
            segments=segments,
            left_out_segments=left_out,
            growth=self._growth(),
            curve=self._curve(),
        )

    def notes(self, named: bool) -> list[str]:
        """Return remarks on this device. `named` says whether they name it."""
        history, lifetimes = self._history(), self._lifetimes
        before = format_bytes(history.before_bytes)
        found = []
        if history.state == "none":
            found.append(
                "The snapshot has no history, so only its end is known. Call "
                "torch.cuda.memory._record_memory_history() before the training."
            )
        elif history.state == "partial":
            found.append(
                f"{before} were allocated before the first event. The peak is exact since then, and may have been "
                "higher before. To see all of it, record from the start of the process."
            )
        if history.state != "none" and history.dropped_stacks:
            found.append(
                f"{counted(history.dropped_stacks, 'allocation')} from before the first event "
                f"{'has' if history.dropped_stacks == 1 else 'have'} a stack: an earlier recording made them, or the "
                "history was full and dropped its oldest events. A larger max_entries keeps more events."
            )
        if history.conflicts:
            found.append(
                f"{counted(history.conflicts, 'event')} contradict others, so the peak is an estimate. The history "
                "and the blocks may be of different moments."
            )
        if self._assumed:
            found.append(
                f"{counted(self._assumed, 'allocation')} without a stack count as backward, because the stacks are of "
                "Python only and the threads of autograd run no Python. Record with stacks='all' to be sure."
            )
        recorded = lifetimes.stack[lifetimes.start >= 0]
        if len(recorded) and not (recorded != NO_STACK).any():
            found.append("The allocations have no stacks. Record with context='all' to see who made them.")
        return [f"Device {self._device}: {note}" for note in found] if named else found

    def _history(self) -> History:
        lifetimes, events = self._lifetimes, self._events
        before = int(self._levels[0])
        recorded = bool((events.action != Action.OTHER).any())
        return History(
            state="none" if not recorded else "partial" if before else "whole",
            events=lifetimes.events,
            time_ns=self._time_ns(lifetimes.events),
            before_bytes=before,
            dropped_stacks=lifetimes.kept_stacks,
            conflicts=lifetimes.conflicts,
        )

    def _time_ns(self, moment: int) -> int | None:
        """Return the time of the last event before a moment."""
        times_us = self._events.time_us
        return None if times_us is None else 1000 * int(times_us[max(0, moment - 1)] - times_us[0])

    def _moment(self, name: str, moment: int) -> Moment:
        alive = self._lifetimes.alive(moment - 1)
        sums = sum_by(self._category[alive], self._lifetimes.size_bytes[alive], len(CATEGORIES))
        return Moment(
            name=name,
            event=moment,
            time_ns=self._time_ns(moment),
            allocated_bytes=int(self._levels[moment]),
            reserved_bytes=int(self._reserved[moment]),
            categories=tuple(
                CategoryBytes(category, size) for category, size in zip(CATEGORIES, sums.tolist(), strict=True) if size
            ),
        )

    def _out_of_memory(self, event: int) -> OutOfMemory:
        events = self._events
        requested = int(events.size_bytes[event])
        stream = int(events.stream[event])
        allocated, reserved = int(self._levels[event + 1]), int(self._reserved[event + 1])
        gap, free = find_gaps(self._snapshot, self._device, self._lifetimes, event, requested, stream)
        site = self._sites[events.stack[event]]
        return OutOfMemory(
            requested_bytes=requested,
            device_free_bytes=int(events.address[event]),
            allocated_bytes=allocated,
            cached_bytes=max(0, reserved - allocated),
            largest_free_bytes=gap,
            line=site.line,
            module=site.module,
            fragmented=free >= requested > gap,
        )

    def _groups(self) -> tuple[MemoryGroup, ...]:
        lifetimes = self._lifetimes
        if not len(lifetimes):
            return ()
        key = (self._line * len(CATEGORIES) + self._category) * len(PHASES) + self._phase
        keys, group = np.unique(key, return_inverse=True)

        def totals(rows: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
            """Return the number and the bytes of allocations in each group."""
            number = np.bincount(group[rows], minlength=len(keys)).tolist()
            return number, sum_by(group[rows], lifetimes.size_bytes[rows], len(keys)).tolist()

        peak = totals(lifetimes.alive(self._peak - 1))
        end = totals(lifetimes.alive(lifetimes.events - 1))
        made = totals(lifetimes.start >= 0)
        failed = totals(lifetimes.alive(int(self._errors[-1])))[1] if len(self._errors) else [None] * len(keys)
        rows = []
        for number, code in enumerate(keys.tolist()):
            rest, phase = divmod(code, len(PHASES))
            line, category = divmod(rest, len(CATEGORIES))
            site = self._lines[line]
            rows.append(
                MemoryGroup(
                    line=site.line,
                    module=site.module,
                    phase=PHASES[phase],
                    category=CATEGORIES[category],
                    peak_bytes=peak[1][number],
                    peak_blocks=peak[0][number],
                    end_bytes=end[1][number],
                    out_of_memory_bytes=failed[number],
                    allocations=made[0][number],
                    allocated_bytes=made[1][number],
                )
            )
        return tuple(sorted(rows, key=lambda row: (-row.peak_bytes, -row.end_bytes, -row.allocated_bytes, row.line)))

    def _growth(self) -> Growth | None:
        starts = step_starts(self._lifetimes, self._phase)[2:]
        steps = list(pairwise(starts.tolist()))
        if len(steps) < LEAST_STEPS:
            return None
        lowest = [start + int(self._levels[start:end].argmin()) for start, end in steps]
        levels = self._levels[lowest]
        rises = np.diff(levels)
        growth = int(levels[-1] - levels[0])
        if (rises < 0).any() or (rises > 0).sum() < LEAST_STEPS - 1 or growth < LEAST_GROWTH_BYTES:
            return None
        key = self._line * len(CATEGORIES) + self._category
        keys, group = np.unique(key, return_inverse=True)
        change = np.zeros(len(keys), np.int64)
        for moment, sign in ((lowest[-1], 1), (lowest[0], -1)):
            alive = self._lifetimes.alive(moment - 1)
            change += sign * sum_by(group[alive], self._lifetimes.size_bytes[alive], len(keys))
        rows = []
        for number in np.argsort(-change, kind="stable")[:GROWTH_ROWS].tolist():
            line, category = divmod(int(keys[number]), len(CATEGORIES))
            if change[number] > 0:
                rows.append(GrowthRow(self._lines[line].line, CATEGORIES[category], int(change[number])))
        return Growth(len(steps) - 1, growth, tuple(rows))

    def _curve(self) -> Curve | None:
        count = self._lifetimes.events
        if not count:
            return None
        levels = self._levels
        edges = np.unique(np.linspace(0, count + 1, min(POINTS, count + 1) + 1).astype(np.int64))
        tops = [start + int(levels[start:end].argmax()) for start, end in pairwise(edges.tolist())]
        points = np.unique(np.array([0, *tops, count]))
        times_ns = [self._time_ns(point) for point in points.tolist()]

        def area(name: str, rows: NDArray[np.bool_]) -> CurveArea:
            return CurveArea(name, tuple(self._lifetimes.levels(rows)[points].tolist()))

        categories = [
            area(name, self._category == number)
            for number, name in enumerate(CATEGORIES)
            if (self._category == number).any()
        ]
        alive = self._lifetimes.alive(self._peak - 1)
        held = sum_by(self._line[alive], self._lifetimes.size_bytes[alive], len(self._lines))
        largest = [number for number in np.argsort(-held, kind="stable")[:CURVE_LINES].tolist() if held[number]]
        others = ~np.isin(self._line, largest)
        lines = [
            area(name_line(self._lines[number].line, self._lines[number].module), self._line == number)
            for number in largest
        ]
        if others.any():
            lines.append(area("all others", others))
        return Curve(
            event=tuple(points.tolist()),
            time_ns=tuple(time_ns for time_ns in times_ns if time_ns is not None) or None,
            reserved_bytes=tuple(self._reserved[points].tolist()),
            categories=tuple(categories),
            lines=tuple(lines),
        )


BYTES_PER_BYTE = 24
"""Memory that a snapshot may need per byte of its file. Those of torch need 3 to 6."""

BASE_BYTES = 1 << 30

BASE_S = 15
"""Processor time that any snapshot may need, with the start of the process."""

S_PER_MIB = 3
"""Further processor time per MiB. Snapshots of torch need 0.2 s."""

_DISTRUST = "Record fewer events with max_entries. If somebody sent you the file, do not trust it"


class Analyze(Message, frozen=True):
    """Asks a worker to analyze a snapshot, within seconds of processor time."""

    path: str
    limit_s: int
    supervisor: int


class Analyzed(Message, frozen=True):
    """The report as JSON, or the error: the place, the problem and the fix of a `TraceError`."""

    report: bytes
    error: tuple[str, str, str] | None = None


def analyze_snapshot(path: Path) -> MemoryReport:
    """Analyze a memory snapshot.

    The file is read in a worker process. It may use memory and processor time in proportion to the file's size, and at
    most a share of the free memory.
    """
    if not sys.executable:
        return build_report(read_snapshot(path), path)
    limit_s = BASE_S + S_PER_MIB * (path.stat().st_size >> 20 if path.is_file() else 0)
    task = Analyze(str(path), limit_s, os.getpid())
    try:
        with WorkerProcess("lightning_perf.memory_snapshot.build:main", task) as worker:
            answer = worker.receive(Analyzed)
    except WorkerError as error:
        if isinstance(error, WorkerExitError) and error.code == -signal.SIGXCPU:
            raise TraceError(path, f"needs more than {limit_s} s of processor time", _DISTRUST) from error
        raise TraceError(
            path, f"cannot be analyzed ({error})", "Record fewer events with max_entries, or free memory and try again"
        ) from error
    if answer.error is not None:
        raise TraceError(*answer.error)
    return MemoryReport.from_json(answer.report)


def main(channel: Channel) -> None:
    """Analyze one snapshot with limits of memory and time."""
    task = channel.receive(Analyze)
    die_with(task.supervisor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (task.limit_s, task.limit_s + 5))
    path = Path(task.path)
    allowed = BASE_BYTES + BYTES_PER_BYTE * (path.stat().st_size if path.is_file() else 0)
    limit = limit_memory(share=min(MEMORY_SHARE, allowed / max(1, free_bytes())), least_bytes=BASE_BYTES)
    try:
        report = build_report(read_snapshot(path), path)
        channel.send(Analyzed(report.to_json(indent=None).encode()))
    except TraceError as error:
        channel.send(Analyzed(b"", (error.where, error.problem, error.action)))
    except MemoryError:
        channel.send(Analyzed(b"", (str(path), f"needs more than {format_bytes(limit)} of memory", _DISTRUST)))
