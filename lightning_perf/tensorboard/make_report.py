"""Make the documents of the worker process: reports of runs, and comparisons of studies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.compare.folders import compare_runs
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.refusal import Unfair, UnfairError
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport, ReportError
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.steps import STEPS

__all__ = [
    "make_report",
    "make_study",
]


LARGEST_REPORT_BYTES = 256 << 20


def make_report(folder: Path, traces: Sequence[Path], place: str) -> PerfReport:
    """Return the report of a run: that of `PerfCallback` if it covers these traces, or else a new one.

    Args:
        folder: The folder with its files.
        traces: The traces in it.
        place: The folder's name in the report: the location where its files were found.

    Raises:
        TraceError: Nothing can be read.
        ReportError: The folder has only a report, and it cannot be read.
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
        raise ReportError(f"the report is larger than {LARGEST_REPORT_BYTES >> 20} MB. Analyze its traces again")
    return PerfReport.from_json(path.read_bytes())


def _covers(report: PerfReport, traces: Sequence[Path]) -> bool:
    """Whether this version made a report from all these traces, so that a new one would be equal."""
    sources = {Path(source).name for source in report.sources}
    notes = "\n".join(report.notes)
    known = all(trace.name in sources or trace.name in notes for trace in traces)
    return known and (report.tool_version == __version__ or not traces)


def _placed(report: PerfReport, folder: str, place: str) -> PerfReport:
    """Return the report with the original locations of its files instead of the temporary ones."""

    def rename(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(text.replace(folder, place) for text in texts)

    return replace(
        report,
        sources=rename(report.sources),
        notes=rename(report.notes),
        ranks=tuple(replace(rank, sources=rename(rank.sources)) for rank in report.ranks),
    )


def make_study(folder: Path) -> Comparison | Unfair:
    """Compare the arms of a study, with the treatment that the study declared.

    Args:
        folder: The study's folder.

    Raises:
        CompareError: The folder is not a study, or it has too few runs.
        MissingExtraError: A package that the statistics need is not installed.
    """
    try:
        return compare_runs(folder)
    except UnfairError as error:
        return error.refusal
