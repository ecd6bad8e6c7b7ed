"""The end of a fit: analyze its folder, save ``report.json``, print the report and log it."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.logged_report import send_report
from lightning_perf.callbacks.probe_fit import probe_fit
from lightning_perf.run_files.fit.account import FitAccount
from lightning_perf.run_files.report import write_notes, write_report

if TYPE_CHECKING:
    from lightning_perf.callbacks.fit import Fit
    from lightning_perf.callbacks.lightning_compat import Trainer
    from lightning_perf.callbacks.run_record.run_folder import RankFiles
    from lightning_perf.callbacks.trainer_log import TrainerLog
    from lightning_perf.report.build import LiveFit
    from lightning_perf.report.document import PerfReport
    from lightning_perf.run_files.numerics.precision import RunPrecision

ReportLength: TypeAlias = Literal["full", "short", "none"]
"""How much of the report is printed at the end of a fit."""

RANKS_WAIT_S = 60.0
"""Time for which rank 0 waits for the files of ranks that share its folder, e.g. the last window on a slow disk."""

# The modules of the report are imported inside the functions: only rank 0 needs them, and only after the fit.


def report_fit(
    fit: Fit,
    files: RankFiles | None,
    trainer: Trainer | None,
    *,
    precision: RunPrecision | None,
    failed: bool,
    show: ReportLength,
    trainer_log: TrainerLog,
    probe_s: float = 0.0,
    probe_requested: bool = False,
    to_loggers: bool = False,
) -> PerfReport | None:
    """Report on a fit that has ended, on its rank 0. An error in here is reported and not raised.

    Args:
        trainer: The Trainer; None for a loop without one.

    Returns:
        The report, or None if it could not be made.
    """
    try:
        from lightning_perf.report.build import LiveFit

        notes = fit.notes()
        if notes and fit.folder is not None:
            _give(fit.errors, "notes are not saved", write_notes, fit.folder, notes)
        if files is not None and fit.folder is not None:
            notes += files.wait(0.0 if failed else RANKS_WAIT_S).notes(fit.folder)
        if probe_s and fit.folder is not None and fit.has_trace:
            probe_fit(fit.folder, probe_s, fit.errors, requested=probe_requested)
        report = build_fit_report(fit.folder, LiveFit(notes, precision, fit.unsaved_samples()))
    except Exception as error:
        fit.errors.report("the report could not be made", error)
        return None
    if fit.folder is not None and (checked := _check_estimates(fit.errors, fit.folder, report)):
        _give(fit.errors, "notes are not saved", write_notes, fit.folder, (*fit.notes(), *checked))
        report = replace(report, notes=(*report.notes, *checked))
    # Each step has its own try: with a full disk the report still reaches the console.
    if fit.folder is not None:
        _give(fit.errors, "the report is not saved", write_report, fit.folder, report)
    if show != "none":
        if trainer is not None:
            _give(fit.errors, "the progress bar is not stopped before the report", stop_live_bar, trainer)
        _give(fit.errors, "the report is not shown", print_fit_report, report, fit.folder, show)
    if trainer is not None:
        _give(fit.errors, "the report is not logged", log_report, report, trainer_log, trainer)
    if to_loggers and trainer is not None:
        _give(fit.errors, "the report is not sent to the loggers", send_report, report, fit.folder, trainer, fit.errors)
    return report


def leave_report(fit: Fit, files: RankFiles | None, show: ReportLength) -> None:
    """Save the notes of a fit that failed on one of several ranks, and print the command that makes the report.

    An analysis takes seconds. A launcher kills all ranks when one dies, and by then the program has to have its error.
    """
    folder = fit.folder
    if folder is None:
        return

    def save_notes() -> None:
        missing = files.wait(0.0).notes(folder) if files is not None else []
        write_notes(folder, [*fit.notes(), *missing])

    _give(fit.errors, "notes are not saved", save_notes)
    if show != "none":
        command = f"lightning-perf analyze {shlex.quote(str(folder))}"
        print_line(f"{fit.errors.name}: the training failed. For a report, run: {command}")


def complete_report(folder: Path, report: PerfReport, account: FitAccount, errors: ErrorReporter) -> None:
    """Write a report again, with the account of the whole fit. It was made before the fit was over."""
    _give(errors, "report.json lacks the end of the fit", _write_completed, folder, report, account)


def _write_completed(folder: Path, report: PerfReport, account: FitAccount) -> None:
    from lightning_perf.analysis.steps.fit_time import summarize_account
    from lightning_perf.findings.registry import find_in_fit

    fit_time = summarize_account(account)
    compilation = report.compilation
    if compilation is not None:
        compilation = replace(compilation, fit_ns=fit_time.wall_ns)
    found = find_in_fit(fit_time, compilation=compilation, growth=report.memory_growth)
    write_report(folder, replace(report, fit_time=fit_time, compilation=compilation, fit_findings=found))


def build_fit_report(folder: Path | None, live: LiveFit) -> PerfReport:
    """Analyse the folder of a fit, as ``lightning-perf analyze`` does.

    Args:
        live: The part of the fit's data that is not in its files.
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


def _check_estimates(errors: ErrorReporter, folder: Path, report: PerfReport) -> tuple[str, ...]:
    """Store the estimates of an earlier fit that this fit followed, and return a note on each."""
    try:
        from lightning_perf.estimates.followed import ReportedRun, check_pair, describe_outcomes, find_previous
        from lightning_perf.run_files.estimates import add_outcomes

        run = ReportedRun.of(report, folder)
        for previous in find_previous(folder):
            outcomes = check_pair(previous, run, "second fit")
            if outcomes:
                add_outcomes(folder, outcomes)
                return describe_outcomes(outcomes)
    except Exception as error:
        errors.report("the estimates of earlier fits are not checked", error)
    return ()


def report_metrics(report: PerfReport) -> dict[str, float]:
    """Return the scalars of a report."""
    if report.lead is None:
        return {}
    breakdown = report.ranks[report.lead].breakdown
    rows = {"step": breakdown.wall.mean_ns, **{row.name: row.mean_ns for row in breakdown.categories}}
    return {f"perf/recorded/{name}_ms": mean_ns / 1e6 for name, mean_ns in rows.items() if mean_ns}


def log_report(report: PerfReport, trainer_log: TrainerLog, trainer: Trainer) -> None:
    """Log the scalars of a report at the Trainer's last step."""
    trainer_log.finish(report_metrics(report), int(trainer.global_step))


def print_line(text: str) -> None:
    """Print a line on the console."""
    sys.stdout.write(f"{text}\n")


def stop_live_bar(trainer: Trainer) -> None:
    """Stop a progress bar that rich redraws in place. It would overwrite lines of the report.

    Training is over, and the bar's own teardown, which also stops it, comes after the report.
    """
    from rich.progress import Progress

    for callback in trainer.callbacks:
        progress = getattr(callback, "progress", None)
        if isinstance(progress, Progress):
            progress.stop()


def print_fit_report(report: PerfReport, folder: Path | None, length: ReportLength) -> None:
    """Print a report on the console."""
    if length == "full":
        report.print()
        return
    from lightning_perf.report.sections.short import short_blocks
    from lightning_perf.show.console import print_blocks

    print_blocks(short_blocks(report, folder))


def _give(errors: ErrorReporter, otherwise: str, use: Callable[..., object], *arguments: object) -> None:
    try:
        use(*arguments)
    except Exception as error:
        errors.report(otherwise, error)
