"""The captures of a run: the moment, how slow the steps were, and the differences to the scheduled window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from lightning_perf.analysis.diff import Diff, diff
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed, distributed
from lightning_perf.errors import TraceError
from lightning_perf.report.recording import Recording
from lightning_perf.report.recordings import RecordingExecutor, analyze_recordings
from lightning_perf.report.sentences import who_waits
from lightning_perf.run_files.captures import CAPTURES, CaptureRecord, CaptureTrigger, Slowdown, is_capture_name
from lightning_perf.run_files.traces import find_traces, group_windows, rank_in_name
from lightning_perf.units import counted, format_duration, format_ratio

AS_USUAL = 1.1
"""A captured step within a tenth of the usual one is no longer slow."""


class Captured(Struct, frozen=True):
    """One capture.

    Attributes:
        folder: Its folder inside the run's folder.
        trigger: The event that asked for it.
        step: The step after which it was requested.
        slowdown: The slow steps that asked for it; None for a capture on demand.
        ranks: Ranks that recorded it.
        rank: The rank that the following fields describe, the one with the longest steps; None if none can be read.
        recorded_steps: Complete steps in it.
        step_ns: Their mean time.
        diff: The differences to the scheduled window of the same rank; None without such a window.
        distributed: The comparison of the ranks; None for one.
        evidence: The moment, how slow the steps were, and the differences, in sentences.
    """

    folder: str
    trigger: CaptureTrigger
    step: int
    slowdown: Slowdown | None
    ranks: tuple[int, ...]
    rank: int | None
    recorded_steps: int
    step_ns: float | None
    diff: Diff | None
    distributed: Distributed | None
    evidence: tuple[str, ...]


def captured(
    folder: Path, ranks: Sequence[RankAnalysis], executor: RecordingExecutor = analyze_recordings
) -> tuple[tuple[Captured, ...], list[str]]:
    """Analyze the captures of a run.

    Returns:
        The captures in the order of their steps, and a note for each file that could not be read.
    """
    records: dict[str, dict[int, CaptureRecord]] = {}
    notes = []
    for path in CAPTURES.paths(folder):
        rank = rank_in_name(path.name) or 0
        try:
            for record in CAPTURES.read(path):
                if not is_capture_name(record.folder):
                    raise TraceError(path, f"does not name a capture's folder: {record.folder!r}", "Remove that line")
                records.setdefault(record.folder, {})[rank] = record
        except TraceError as error:
            notes.append(f"Captures of rank {rank} are left out: {error}")
    found = []
    for name, of_ranks in records.items():
        try:
            results = executor(group_windows(find_traces(folder / name)))
        except TraceError:
            results = []  # it ended before its first whole step, as the evidence says
        notes += [f"Left out, unreadable: {error}" for result in results for error in result.errors]
        found.append(_captured(name, of_ranks, results, ranks))
    return tuple(sorted(found, key=lambda each: (each.step, each.folder))), notes


def _captured(
    name: str, records: dict[int, CaptureRecord], results: Sequence[Recording], usual: Sequence[RankAnalysis]
) -> Captured:
    first = records[min(records)]
    analyses = [analysis for result in results for analysis in result.analyses]
    compared = distributed([times for result in results for times in result.times])
    sound = [each for each in analyses if each.breakdown.wall.mean_ns and not each.breakdown.truncated]
    known = {each.rank: each for each in usual if each.breakdown.wall.mean_ns and not each.breakdown.truncated}
    comparable = [each for each in sound if each.rank in known]
    lead = max(comparable or sound, key=lambda each: each.breakdown.wall.mean_ns or 0.0, default=None)
    changed = None
    if lead is not None and lead.rank in known:
        changed = diff(known[lead.rank], lead)
    slowdown = records[lead.rank].slowdown if lead is not None and lead.rank in records else first.slowdown
    return Captured(
        folder=name,
        trigger=first.trigger,
        step=first.step,
        slowdown=slowdown,
        ranks=tuple(sorted(each.rank for each in sound if each.rank is not None)),
        rank=lead.rank if lead is not None else None,
        recorded_steps=lead.breakdown.averaged_steps if lead is not None else 0,
        step_ns=lead.breakdown.wall.mean_ns if lead is not None else None,
        diff=changed,
        distributed=compared,
        evidence=(*_evidence(first, slowdown, lead, changed), *who_waits(compared)),
    )


def _evidence(
    record: CaptureRecord, slowdown: Slowdown | None, lead: RankAnalysis | None, changed: Diff | None
) -> list[str]:
    lines = []
    if slowdown is not None:
        slow_ns = sum(slowdown.step_ns) / max(len(slowdown.step_ns), 1)
        lines.append(
            f"{counted(len(slowdown.step_ns), 'step')} up to step {record.step} took {format_duration(slow_ns)} on "
            f"average, {format_ratio(slow_ns / max(slowdown.usual_ns, 1))} the usual "
            f"{format_duration(slowdown.usual_ns)}. The limit was {format_duration(slowdown.limit_ns)}."
        )
    else:
        how = "SIGUSR2" if record.trigger is CaptureTrigger.SIGNAL else "the file profile-now"
        lines.append(f"Requested by {how} at step {record.step}.")
    if lead is None:
        lines.append("No whole step was captured: the fit ended before that, or the trace was lost.")
    elif changed is None:
        lines.append("There is no scheduled window of this rank to compare it with.")
    else:
        lines += _differences(changed, by_request=slowdown is None)
    return lines


def _differences(changed: Diff, *, by_request: bool) -> list[str]:
    step = changed.step
    lines = [
        (
            f"A captured step takes {format_duration(step.after_ns)} (mean of {changed.after_steps}), "
            f"a step of the scheduled window {format_duration(step.before_ns)} (mean of {changed.before_steps})."
        )
    ]
    if (step.ratio or 0.0) < AS_USUAL and not by_request:
        lines.append("The steps were as fast as usual again by the time that the profiler recorded.")
    return lines
