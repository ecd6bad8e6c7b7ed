"""The end of a fit: probe, analyze its folder, save ``report.json``, print the report and send it to the loggers."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.trainer_log import is_table
from lightning_perf.errors import TraceError
from lightning_perf.run_files.fit.account import FitAccount
from lightning_perf.run_files.probe import DEFAULT_SECONDS
from lightning_perf.run_files.report import write_notes, write_report

if TYPE_CHECKING:
    from lightning_perf.callbacks.fit import Fit
    from lightning_perf.callbacks.lightning_compat import Trainer
    from lightning_perf.callbacks.run_record.run_folder import RankFiles
    from lightning_perf.report.build import LiveFit
    from lightning_perf.report.document import PerfReport
    from lightning_perf.run_files.numerics.precision import RunPrecision

ReportLength: TypeAlias = Literal["full", "short", "none"]
"""How much of the report is printed at the end of a fit."""

RANKS_WAIT_S = 60.0
"""Time for which rank 0 waits for the files of ranks that share its folder, e.g. the last window on a slow disk."""

REPORT_PAGE = "report.html"
"""The page for the loggers, in the folder of the fit."""

# The modules of the report are imported inside the functions: only rank 0 needs them, and only after the fit.


def report_fit(
    fit: Fit,
    files: RankFiles,
    trainer: Trainer | None,
    *,
    error: BaseException | None,
    show: ReportLength,
    precision: RunPrecision | None = None,
    probe: ProbeOption = False,
    to_loggers: bool = False,
) -> PerfReport | None:
    """Report on a fit that has ended, perhaps by an error, on rank 0. A fault in here is reported and not raised."""
    if error is not None and fit.is_empty:
        return None  # the error itself is all there is to report
    if isinstance(error, Exception) and fit.loop.world_size > 1:
        _leave_report(fit, files, show)
        return None
    errors, folder = fit.errors, fit.folder
    try:
        from lightning_perf.report.build import LiveFit

        notes = fit.notes()
        if folder is not None:
            if notes:
                with errors.instead("notes are not saved"):
                    write_notes(folder, notes)
            notes += files.wait(0.0 if error is not None else RANKS_WAIT_S)
            probe_s = probe_seconds(probe, time.perf_counter() - fit.began_s, fit.loop.world_size)
            if probe_s and error is None and fit.has_trace:
                _probe(folder, probe_s, errors, requested=probe is not None)
        report = build_fit_report(folder, LiveFit(notes, precision, fit.unsaved_samples()))
    except Exception as failure:
        errors.report("the report could not be made", failure)
        return None
    # Each step has its own isolation: with a full disk the report still reaches the console.
    if folder is not None:
        report = _with_checked_estimates(fit, folder, report)
        with errors.instead("the report is not saved"):
            write_report(folder, report)
    if show != "none":
        with errors.instead("the progress bar is not stopped before the report"):
            stop_live_bar(trainer)
        with errors.instead("the report is not shown"):
            print_fit_report(report, folder, show)
    with errors.instead("the report is not logged"):
        fit.trainer_log.finish(report_metrics(report), fit.loop.global_step)
    if to_loggers:
        with errors.instead("the report is not sent to the loggers"):
            send_report(report, folder, trainer, errors)
    return report


def _leave_report(fit: Fit, files: RankFiles, show: ReportLength) -> None:
    """Save the notes of a fit that failed on one of several ranks, and print the command that makes the report.

    A launcher kills all ranks when one dies, and an analysis takes seconds.
    """
    folder = fit.folder
    if folder is None:
        return
    with fit.errors.instead("notes are not saved"):
        write_notes(folder, [*fit.notes(), *files.wait(0.0)])
    if show != "none":
        command = f"lightning-perf analyze {shlex.quote(str(folder))}"
        print_line(f"{fit.errors.name}: the training failed. For a report, run: {command}")


def complete_report(folder: Path, report: PerfReport, errors: ErrorReporter, account: FitAccount) -> None:
    """Write a report again, with the account of the whole fit. It was made before the fit was over."""
    from lightning_perf.analysis.steps.fit_time import summarize_account

    with errors.instead("report.json lacks the end of the fit"):
        fit_time = summarize_account(account)
        compilation = report.compilation
        if compilation is not None:
            compilation = replace(compilation, fit_ns=fit_time.wall_ns)
        write_report(folder, replace(report, fit_time=fit_time, compilation=compilation))


def build_fit_report(folder: Path | None, live: LiveFit) -> PerfReport:
    """Analyse the folder of a fit, as ``lightning-perf analyze`` does, and its data that are not in files."""
    from lightning_perf.report.build import analyze, build_report

    begin_ns = time.perf_counter_ns()
    if folder is not None:
        report = analyze(folder, live=live)
    else:
        report = build_report((), samples=live.unsaved, notes=live.notes, precision=live.precision)
    if report.trust is None:
        return report
    return replace(report, trust=replace(report.trust, analysis_ns=time.perf_counter_ns() - begin_ns))


def _with_checked_estimates(fit: Fit, folder: Path, report: PerfReport) -> PerfReport:
    """Store the estimates of an earlier fit that this fit followed, and note each."""
    try:
        from lightning_perf.estimates.followed import ReportedRun, check_pair, describe_outcomes, find_previous
        from lightning_perf.run_files.estimates import add_outcomes

        run = ReportedRun.of(report, folder)
        outcomes = next(filter(None, (check_pair(earlier, run, "second fit") for earlier in find_previous(folder))), ())
        if not outcomes:
            return report
        add_outcomes(folder, outcomes)
        checked = describe_outcomes(outcomes)
    except Exception as error:
        fit.errors.report("the estimates of earlier fits are not checked", error)
        return report
    with fit.errors.instead("notes are not saved"):
        write_notes(folder, (*fit.notes(), *checked))
    return replace(report, notes=(*report.notes, *checked))


def report_metrics(report: PerfReport) -> dict[str, float]:
    """Return the scalars of a report."""
    if report.lead is None:
        return {}
    breakdown = report.ranks[report.lead].breakdown
    rows = {"step": breakdown.wall.mean_ns, **{row.name: row.mean_ns for row in breakdown.categories}}
    return {f"perf/recorded/{name}_ms": mean_ns / 1e6 for name, mean_ns in rows.items() if mean_ns}


def print_line(text: str) -> None:
    """Print a line on the console."""
    sys.stdout.write(f"{text}\n")


def stop_live_bar(trainer: Trainer | None) -> None:
    """Stop a progress bar that rich redraws in place. It would overwrite lines of the report.

    Training is over, and the bar's own teardown, which also stops it, comes after the report.
    """
    from rich.progress import Progress

    for callback in trainer.callbacks if trainer is not None else ():
        progress = getattr(callback, "progress", None)
        if isinstance(progress, Progress):
            progress.stop()


def print_fit_report(report: PerfReport, folder: Path | None, length: ReportLength) -> None:
    """Print a report on the console."""
    if length == "full":
        report.print()
        return
    from lightning_perf.report.sections.report import short_blocks
    from lightning_perf.show.console import print_blocks

    print_blocks(short_blocks(report, folder))


def send_report(report: PerfReport, folder: Path | None, trainer: Trainer, errors: ErrorReporter) -> None:
    """Write the page, and send it to each logger together with the key figures.

    Weights & Biases and MLflow get the page as an artifact. TensorBoard, which has no artifacts, gets the verdict and
    the key figures as text. Every logger but a `CSVLogger` gets the figures as metrics.
    """
    from lightning_perf.report.document import key_figures

    page = None
    if folder is not None:
        with errors.instead("the page of the report is not written"):
            report.write_html(folder / REPORT_PAGE)
            page = folder / REPORT_PAGE
    figures = {f"perf/report/{figure.logged_as}": float(figure.value) for figure in key_figures(report)}
    for logger in trainer.loggers:  # each may come from anywhere, and the others still get it
        with errors.instead(f"the report is not sent to {type(logger).__name__}", kind="loggers"):
            _send(logger, report, figures, page, int(trainer.global_step))


def _send(logger: Any, report: PerfReport, figures: dict[str, float], page: Path | None, step: int) -> None:
    kinds = {base.__name__ for base in type(logger).__mro__}
    if not is_table(logger):
        logger.log_metrics(figures, step=step)
    if "TensorBoardLogger" in kinds:
        logger.experiment.add_text("perf/report", _summary(report), step)
    if page is None:
        return
    if "WandbLogger" in kinds:
        import wandb

        artifact = wandb.Artifact(name=f"perf-report-{logger.experiment.id}", type="perf-report")
        artifact.add_file(str(page), name=page.name)
        logger.experiment.log_artifact(artifact)
    if "MLFlowLogger" in kinds:
        logger.experiment.log_artifact(logger.run_id, str(page), "perf")


def _summary(report: PerfReport) -> str:
    from lightning_perf.report.document import key_figures
    from lightning_perf.show.blocks import Line, table
    from lightning_perf.show.markup import to_markdown

    verdict = report.verdict
    lines = (("Where", verdict.where), ("Why", verdict.why), ("Next", verdict.next))
    figures = table(("", ""), ((figure.title, figure.text) for figure in key_figures(report)))
    return to_markdown([*(Line(text, label=name) for name, text in lines), figures]).rstrip("\n")


# The probe runs the recorded operators again in a worker process, before the report is made.

ProbeOption = bool | float | None
"""``None`` lets the length of the fit decide, a number gives the seconds."""

PROBE_SHARE = 0.1
"""Largest share of the fit's time that a probe may take unless you ask for it."""


def check_probe(probe: ProbeOption) -> None:
    """Check the argument `probe` of `PerfCallback`."""
    if probe is None or isinstance(probe, bool):
        return
    if not isinstance(probe, int | float):
        raise TypeError(f"probe={probe!r} must be True, False, None or a number of seconds")
    if not probe > 0 or probe == float("inf"):
        raise ValueError(f"probe={probe!r} must be a number of seconds greater than 0; probe=False turns the probe off")


def probe_seconds(probe: ProbeOption, fit_s: float, world_size: int) -> float:
    """Return the time for the probe; 0 for none.

    With several ranks the others may still be busy, so a probe has to be requested.
    """
    if probe is None:
        return DEFAULT_SECONDS if fit_s * PROBE_SHARE >= DEFAULT_SECONDS and world_size == 1 else 0.0
    if isinstance(probe, bool):
        return DEFAULT_SECONDS if probe else 0.0
    return float(probe)


def _probe(folder: Path, seconds: float, errors: ErrorReporter, *, requested: bool) -> None:
    """Write ``probe.json``. A trace without anything to probe is an error only if the probe was requested."""
    with errors.instead("the recorded operators are not probed"):
        from lightning_perf.probe.run import probe_path
        from lightning_perf.run_files.probe import write_probe

        try:
            write_probe(folder, probe_path(folder, seconds))
        except TraceError:
            if requested:
                raise
