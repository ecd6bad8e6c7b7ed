"""The files of a run ─► its report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport, ReportError
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.steps import STEPS

__all__ = ["make_report"]

LARGEST_REPORT_BYTES = 256 << 20


def make_report(folder: Path, traces: Sequence[Path], place: str) -> PerfReport:
    """Make the report of a run: the one that `PerfCallback` left, where it is of these traces, or else a new one.

    Args:
        folder: The folder with its files.
        traces: Its traces in there.
        place: What the folder is called in the report: where its files were found.

    Raises:
        TraceError: Nothing can be read.
        ReportError: There is nothing but a report, and it cannot be read.
    """
    others = traces or STEPS.paths(folder)
    if (folder / REPORT_NAME).exists():
        try:
            finished = _read_report(folder / REPORT_NAME)
        except ReportError:
            if not others:
                raise
        else:
            if not others or _covers(finished, traces):
                return finished
    return _placed(analyze(folder), str(folder), place)


def _read_report(path: Path) -> PerfReport:
    if path.stat().st_size > LARGEST_REPORT_BYTES:
        raise ReportError(f"the report is larger than {LARGEST_REPORT_BYTES >> 20} MB: analyze its traces again")
    return PerfReport.from_json(path.read_bytes())


def _covers(report: PerfReport, traces: Sequence[Path]) -> bool:
    """Whether a report is of all these traces and by this version, so that a new one would say the same."""
    sources = {Path(source).name for source in report.sources}
    told = "\n".join(report.notes)
    known = all(trace.name in sources or trace.name in told for trace in traces)
    return known and (report.tool_version == __version__ or not traces)


def _placed(report: PerfReport, folder: str, place: str) -> PerfReport:
    """The report with the files called by where they were found instead of where they were read."""

    def rename(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(text.replace(folder, place) for text in texts)

    return replace(
        report,
        sources=rename(report.sources),
        notes=rename(report.notes),
        ranks=tuple(replace(rank, sources=rename(rank.sources)) for rank in report.ranks),
    )
