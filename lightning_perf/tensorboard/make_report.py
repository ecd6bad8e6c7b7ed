"""The files of a run ─► its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.analysis.run_precision import RunPrecision, read_precision
from lightning_perf.analysis.step_times import StepSample, read_samples
from lightning_perf.report.build import build_report
from lightning_perf.report.document import PerfReport, ReportError, from_json
from lightning_perf.trace.errors import TraceError

__all__ = ["make_report"]

LARGEST_REPORT_BYTES = 256 << 20


def make_report(traces: Sequence[Path], others: Iterable[Path], shown: Mapping[Path, str]) -> PerfReport:
    """Make the report of a run: the one that `PerfCallback` left, where it is of these traces, or else a new one.

    Args:
        traces: Its traces.
        others: Its other files.
        shown: What each file is called in the report.

    Raises:
        TraceError: Nothing can be read.
        ReportError: There is nothing but a report, and it cannot be read.
    """
    named = {path.name: path for path in others}
    finished: PerfReport | None = None
    if "report.json" in named:
        try:
            finished = _read_report(named["report.json"])
        except ReportError:
            if not traces and not _logs(named):
                raise
    if finished is not None and (_covers(finished, traces) or not (traces or _logs(named))):
        return finished
    notes: list[str] = []
    samples: Sequence[StepSample] = ()
    precision: RunPrecision | None = None
    if _logs(named):
        try:
            samples = read_samples(_logs(named)[0])
        except TraceError as error:
            if not traces:
                raise
            notes.append(f"Step times are left out: {error}")
    if "precision.json" in named:
        try:
            precision = read_precision(named["precision.json"])
        except TraceError as error:
            notes.append(f"The run's precision is left out: {error}")
    return _shown(build_report(traces, samples=samples, notes=notes, precision=precision), shown)


def _read_report(path: Path) -> PerfReport:
    if path.stat().st_size > LARGEST_REPORT_BYTES:
        raise ReportError(f"the report is larger than {LARGEST_REPORT_BYTES >> 20} MB: analyze its traces again")
    return from_json(path.read_bytes())


def _logs(named: Mapping[str, Path]) -> list[Path]:
    return [path for name, path in sorted(named.items()) if name.startswith("steps.rank")]


def _covers(report: PerfReport, traces: Sequence[Path]) -> bool:
    """Whether a report is of all these traces and by this version, so that a new one would say the same."""
    sources = {Path(source).name for source in report.sources}
    told = "\n".join(report.notes)
    known = all(trace.name in sources or trace.name in told for trace in traces)
    return known and (report.tool_version == __version__ or not traces)


def _shown(report: PerfReport, shown: Mapping[Path, str]) -> PerfReport:
    """The report with the files called by where they were found instead of where they were read."""
    names = {str(path): name for path, name in shown.items()}

    def rename(sources: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(source, source) for source in sources)

    return replace(
        report,
        sources=rename(report.sources),
        notes=tuple(_replaced(note, names) for note in report.notes),
        ranks=tuple(replace(rank, sources=rename(rank.sources)) for rank in report.ranks),
    )


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for path, name in names.items():
        text = text.replace(path, name)
    return text
