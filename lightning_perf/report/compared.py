"""The comparison of two reports, the document behind ``lightning-perf diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import field

from lightning_perf import __version__
from lightning_perf.analysis.comparability import Comparability, check_comparable, other_changes
from lightning_perf.analysis.diff import (
    Diff,
    DiffRow,
    FitDiff,
    MemoryDiff,
    compare_compilations,
    diff,
    diff_fits,
    diff_memory,
    diff_steps,
)
from lightning_perf.analysis.precision.amp_gain import AmpCheck, check_prediction
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.documents import TOP, Format, LongDocument, PageDocument, SavedDocument
from lightning_perf.errors import ReportError, TraceError
from lightning_perf.report.labels import run_name
from lightning_perf.units import format_duration

if TYPE_CHECKING:
    from lightning_perf.page.html import Kind
    from lightning_perf.report.document import PerfReport
    from lightning_perf.show.blocks import Block, Parts

SCHEMA_VERSION = 1
"""Version of the document's layout. Every change that an old reader would misread raises it."""

MIXED_SHARE = 0.10
"""From this share of 16-bit compute on, the second recording counts as one of mixed precision."""


class Compared(LongDocument, PageDocument, SavedDocument, frozen=True):
    """The changes from one recording to another.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        before: The first recording's files.
        after: The second recording's files.
        diff: The changes, as means per step. A single pair of recordings shows what changed, but cannot show that it
            would change again.
        notes: Remarks to read first, on both recordings or on the one that the note begins with.
        headline: The time of a step before and after, or of a whole recording without marked steps. It is the median
            of the steps without the profiler if both runs have it, else the mean of the recorded ones.
        mixed_precision: The gain that the first recording predicts for mixed precision, and the measured gain.
            ``None`` if the recordings are not comparable, or something other than the precision changed too.
        fit: The changes of the whole fits; ``None`` unless both reports have the account of their fit.
        memory: The changes of the memory at the peak, of each device for which both recordings have allocations.
        compilation: The compilations of both, in sentences; empty if neither compiled anything.
        comparability: Whether both recordings show the same training. If not, no verdict calls one of them faster.
        usual_step: The medians of the steps without the profiler; ``None`` unless both runs measured them.
    """

    schema_version: int
    tool_version: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    diff: Diff
    notes: tuple[str, ...]
    headline: str
    mixed_precision: AmpCheck | None = None
    comparability: Comparability = field(default_factory=Comparability)
    fit: FitDiff | None = None
    memory: tuple[MemoryDiff, ...] = ()
    compilation: str = ""
    usual_step: DiffRow | None = None

    @property
    def step(self) -> DiffRow:
        """The step time before and after: the medians without the profiler if both are known, else recorded means."""
        return self.usual_step or self.diff.step

    _format = Format("comparison of two recordings", "comparison", SCHEMA_VERSION, "compare them again", ReportError)

    def blocks(self, top: int = TOP) -> Iterator[Block]:
        """Yield the step time and the categories first, then the other figures."""
        from lightning_perf.report.sections.diff import diff_blocks

        return diff_blocks(self, top)

    def _page(self) -> tuple[Kind, str]:
        return "diff", f"{run_name(self.before)} and {run_name(self.after)}"

    def _page_data(self) -> bytes:
        return msgspec.json.encode({"before": self.before, "after": self.after})

    def _parts(self) -> Parts:
        from lightning_perf.report.sections.diff import diff_parts

        return diff_parts(self)


def compare_reports(before: PerfReport, after: PerfReport) -> Compared:
    """Compare the slowest ranks of two reports.

    Raises:
        TraceError: One of them is truncated, so that its times are only lower bounds.
    """
    first, second = _lead(before), _lead(after)
    checked = check_comparable(first, second)
    comparable = not checked.mismatches
    usual = diff_steps(_usual_step_ns(before, first), _usual_step_ns(after, second), comparable=comparable)
    check = _check(first, second, usual) if comparable else None
    changes = other_changes(first, second) if check is not None else ()
    return Compared(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        before=before.sources,
        after=after.sources,
        diff=diff(first, second, comparable=comparable),
        notes=(*checked.notes, *join_notes(before.notes, after.notes), *_unjoined(changes)),
        headline=_headline(first.breakdown, second.breakdown, usual),
        usual_step=usual,
        mixed_precision=check if not changes else None,
        comparability=checked,
        fit=diff_fits(before.fit_time, after.fit_time),
        memory=diff_memory(first.memory, second.memory),
        compilation=compare_compilations(
            before.compilation,
            after.compilation,
            step_before_ns=_plain_step_ns(before, first) if comparable else None,
            step_after_ns=_plain_step_ns(after, second) if comparable else None,
        ),
    )


def _plain_step_ns(report: PerfReport, lead: RankAnalysis) -> float | None:
    """Return the median step without the profiler; None if compiled code ran and nothing about it was written."""
    if report.step_times is None or (report.compilation is None and lead.workload.compiled):
        return None
    return report.step_times.p50_ns


def _usual_step_ns(report: PerfReport, lead: RankAnalysis) -> float | None:
    usual = report.step_times.of_rank(lead.rank) if report.step_times is not None else None
    return usual.p50_ns if usual is not None and lead.breakdown.marked else None


def _headline(before: Breakdown, after: Breakdown, usual: DiffRow | None) -> str:
    if usual is not None:
        return f"A step took {format_duration(usual.before_ns)} and takes {format_duration(usual.after_ns)}"
    first, second = ("A step" if each.marked else "The whole recording" for each in (before, after))
    again = "" if first == second else f", {second[0].lower()}{second[1:]}"
    took, takes = (format_duration(each.wall.mean_ns) for each in (before, after))
    return f"{first} took {took}{again or ' and'} takes {takes}"


def join_notes(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of both. A note on one of them only says on which."""
    return (
        *(note if note in after else f"Before: {note}" for note in before),
        *(f"After: {note}" for note in after if note not in before),
    )


def _check(before: RankAnalysis, after: RankAnalysis, usual: DiffRow | None) -> AmpCheck | None:
    step_ns = usual.after_ns if usual is not None else after.breakdown.wall.mean_ns
    if before.amp_gain is None or after.arithmetic is None or not after.arithmetic.compute_ns or not step_ns:
        return None
    half_ns = after.arithmetic.row("fp16").time_ns + after.arithmetic.row("bf16").time_ns
    mixed = half_ns >= MIXED_SHARE * after.arithmetic.compute_ns
    return check_prediction(before.amp_gain, step_ns, usual.before_ns if usual is not None else None) if mixed else None


def _unjoined(changes: Sequence[str]) -> tuple[str, ...]:
    if not changes:
        return ()
    return (
        (
            "The predicted gain of mixed precision is not compared with the measured one, because something else "
            f"changed too: {', '.join(changes)}."
        ),
    )


def _lead(report: PerfReport) -> RankAnalysis:
    if report.lead is None:
        raise TraceError("the report", "holds no recording", "Compare reports that were made from traces")
    lead = report.ranks[report.lead]
    if lead.problems.unread_events:
        problem = "holds device work of no known category, so the parts of its steps are unknown"
        raise TraceError(lead.sources[0], problem, "Compare the timelines: lightning-perf view FILE")
    if lead.breakdown.truncated:
        raise TraceError(lead.sources[0], "ends early, so its times are only lower bounds", "Record it again")
    return lead
