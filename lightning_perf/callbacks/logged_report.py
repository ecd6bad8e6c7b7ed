"""Send the report of a fit to the loggers of the Trainer: its key figures, and its page as an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.trainer_log import is_table

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport

REPORT_PAGE = "report.html"
"""The page, in the folder of the fit."""

PREFIX = "perf/report/"
"""Start of the names of the logged figures."""

ARTIFACT_FOLDER = "perf"
"""Folder of the page among the artifacts of an MLflow run."""


def send_report(report: PerfReport, folder: Path | None, trainer: Trainer, errors: ErrorReporter) -> None:
    """Write the page, and send it to each logger together with the key figures.

    Weights & Biases and MLflow get the page as an artifact. TensorBoard, which has no artifacts, gets the verdict and
    the key figures as text. Every logger but a `CSVLogger` gets the figures as metrics.
    """
    from lightning_perf.report.key_figures import key_figures

    page = None
    if folder is not None:
        page = folder / REPORT_PAGE
        try:
            report.write_html(page)
        except Exception as error:
            errors.report("the page of the report is not written", error)
            page = None
    figures = {f"{PREFIX}{figure.logged_as}": float(figure.value) for figure in key_figures(report)}
    for logger in trainer.loggers:
        try:
            _send(logger, report, figures, page, int(trainer.global_step))
        except Exception as error:  # noqa: PERF203 (the logger may come from anywhere, and the others still get it)
            errors.report(f"the report is not sent to {type(logger).__name__}", error, kind="loggers")


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
        logger.experiment.log_artifact(logger.run_id, str(page), ARTIFACT_FOLDER)


def _summary(report: PerfReport) -> str:
    from lightning_perf.report.key_figures import key_figures
    from lightning_perf.show.blocks import Line, table
    from lightning_perf.show.markdown import to_markdown

    verdict = report.verdict
    lines = (("Where", verdict.where), ("Why", verdict.why), ("Next", verdict.next))
    figures = table(("", ""), ((figure.title, figure.text) for figure in key_figures(report)))
    return to_markdown([*(Line(text, label=name) for name, text in lines), figures]).rstrip("\n")
