"""The end of a fit: analyse its folder, save ``report.json``, log it, and show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.run_files.notes import write_notes
from lightning_perf.run_files.report import write_report

if TYPE_CHECKING:
    from lightning_perf.callbacks.fit import Fit
    from lightning_perf.callbacks.lightning_compat import Trainer
    from lightning_perf.callbacks.run_record.run_folder import RankFiles
    from lightning_perf.report.build import LiveFit
    from lightning_perf.report.document import PerfReport
    from lightning_perf.run_files.precision import RunPrecision

__all__ = ["build_fit_report", "log_report", "print_fit_report", "report_fit", "report_metrics", "stop_live_bar"]

# The report's modules are imported where they are used: a fit imports them when it is over, and not on every rank.


def report_fit(
    fit: Fit, files: RankFiles | None, trainer: Trainer, *, precision: RunPrecision | None, wait_s: float, show: bool
) -> None:
    """Report on a fit that has ended, on its rank 0. An error in here is reported and goes no further.

    Args:
        fit: The fit.
        files: Tells when the other ranks have written theirs; None not to wait.
        trainer: The Trainer.
        precision: The precision of the fit and what it did to the numbers.
        wait_s: Longest wait for other ranks, in seconds.
        show: Whether to print the report.
    """
    try:
        from lightning_perf.report.build import LiveFit

        notes = fit.notes()
        if notes and fit.folder is not None:
            _give(fit.errors, "notes are not saved", write_notes, fit.folder, notes)
        if files is not None and fit.folder is not None:
            notes += files.wait(wait_s).notes(fit.folder)
        report = build_fit_report(fit.folder, LiveFit(notes, precision, fit.unsaved_samples()))
    except Exception as error:
        fit.errors.report("the report could not be made", error)
        return
    # Each for itself: a full disk keeps nothing from the console.
    if fit.folder is not None:
        _give(fit.errors, "the report is not saved", write_report, fit.folder, report)
    if show:
        _give(fit.errors, "the progress bar is not stopped before the report", stop_live_bar, trainer)
        _give(fit.errors, "the report is not shown", print_fit_report, report)
    _give(fit.errors, "the report is not logged", log_report, report, trainer.loggers, trainer.global_step)


def build_fit_report(folder: Path | None, live: LiveFit) -> PerfReport:
    """Analyse the folder of a fit, as ``lightning-perf analyze`` does.

    Args:
        folder: The folder with the files of all ranks; None when there is none.
        live: What the fit knows beyond its files.

    Returns:
        The report; without the traces, which a note says, when none of them can be read.
    """
    from lightning_perf.report.build import analyze, build_report

    begin_ns = time.perf_counter_ns()
    if folder is not None:
        report = analyze(folder, live=live)
    else:
        report = build_report((), samples=live.unsaved, notes=live.notes, precision=live.precision)
    if report.trust is None:
        return report
    return replace(report, trust=replace(report.trust, analysis_ns=time.perf_counter_ns() - begin_ns))


def report_metrics(report: PerfReport) -> dict[str, float]:
    """The scalars of a report.

    Args:
        report: The report.

    Returns:
        Of the rank that the report speaks of first, the mean recorded step ``perf/recorded/step_ms`` and each category
        of it, as ``perf/recorded/kernel_launch_ms``; empty when nothing was recorded.
    """
    if report.lead is None:
        return {}
    breakdown = report.ranks[report.lead].breakdown
    rows = {"step": breakdown.wall.mean_ns, **{row.name: row.mean_ns for row in breakdown.categories}}
    return {f"perf/recorded/{name}_ms": mean_ns / 1e6 for name, mean_ns in rows.items() if mean_ns is not None}


def log_report(report: PerfReport, loggers: Iterable[Any], step: int) -> None:
    """Give the scalars of a report to loggers.

    Args:
        report: The report.
        loggers: The Trainer's loggers.
        step: The step to log them at.
    """
    metrics = report_metrics(report)
    if metrics:
        for logger in loggers:
            logger.log_metrics(metrics, step=step)


def stop_live_bar(trainer: Trainer) -> None:
    """Stop a progress bar that rich redraws in place: it would draw over the report, and erase lines of it.

    Training is over, and the bar's own teardown, which stops it again, comes only after the report.

    Args:
        trainer: The Trainer.
    """
    from rich.progress import Progress

    for callback in trainer.callbacks:
        progress = getattr(callback, "progress", None)
        if isinstance(progress, Progress):
            progress.stop()


def print_fit_report(report: PerfReport) -> None:
    """Print a report on the console."""
    report.print()


def _give(errors: ErrorReporter, otherwise: str, use: Callable[..., object], *arguments: object) -> None:
    try:
        use(*arguments)
    except Exception as error:
        errors.report(otherwise, error)
