"""One fit of a Trainer with a `PerfCallback`: its account, from the first call, and from training on its steps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.fit import Fit
from lightning_perf.callbacks.forecast.fp8_watch import Fp8Monitor, fp8_layers
from lightning_perf.callbacks.forecast.monitor import ForecastMonitor
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.numerics.replay import Replay
from lightning_perf.callbacks.numerics.shadow import ShadowMonitor
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.callbacks.recording.recording_plan import Recording
from lightning_perf.callbacks.report import (
    ProbeOption,
    ReportLength,
    complete_report,
    print_line,
    report_fit,
)
from lightning_perf.callbacks.run_record.fit_record import FitRecord
from lightning_perf.callbacks.run_record.run_folder import RankFiles, claim_run_folder
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.callbacks.training_loop import TrainerLoop
from lightning_perf.run_files.run_record import study_folder


class AttachedLog:
    """The attribute `log` of a callback, which notifies the callback when a Trainer sets it.

    The Trainer sets it to the `log` of the module at the start of every fit, before it prepares data. No hook of a
    callback is as early.
    """

    def __get__(self, callback: Any, owner: type[Any]) -> Any:
        """Return the module's `log`; None before the first fit."""
        return self if callback is None else vars(callback).get("log")

    def __set__(self, callback: Any, log: Any) -> None:
        """Keep the module's `log`, and notify the callback."""
        vars(callback)["log"] = log
        callback._on_attach(getattr(getattr(log, "__self__", None), "_trainer", None))


def open_account(trainer: Trainer | None) -> list[FitAccountant]:
    """Start the account of a fit. Other functions of a Trainer have none, and an error costs the account only."""
    accounts = []
    with ErrorReporter().instead("the account of the fit is left out"):
        if trainer is not None and trainer.state.fn == "fit":
            accounts = [FitAccountant(trainer)]
    return accounts


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The options of a `PerfCallback` that hold for each of its fits. It describes them."""

    recording: Recording
    forecast: float | None
    shadow: int
    dirpath: str | None
    fingerprint: Literal["full", "light"]
    probe: ProbeOption
    report: ReportLength
    log_metrics: bool
    log_report: bool


class FitSession:
    """Observes the training of one fit, and reports on it. It also monitors the numbers, as `precision` has set."""

    def __init__(
        self,
        trainer: Trainer,
        options: SessionOptions,
        precision: PrecisionCallback,
        accounts: Sequence[FitAccountant],
    ) -> None:
        self._options = options
        self._precision = precision
        self._accounts = accounts
        self._finished = False
        self.errors = errors = ErrorReporter()
        self.observers = Observers(errors)
        self.fit: Fit | None = None
        """The steps of the fit; None if they are not observed."""
        self._records: list[FitRecord] = []
        self._in_study = study_folder() is not None
        self.measured = not trainer.fast_dev_run or self._in_study
        """Whether the fit is measured; a trial run of the Trainer is not."""
        if not self.measured:
            for account in accounts:
                account.close()
            if options.report != "none" and trainer.is_global_zero:
                print_line("PerfCallback: nothing is measured under fast_dev_run.")
        # A collective call: every rank makes it, even if one of them has failed.
        path = study_folder() or options.dirpath
        self.folder = errors.folder = claim_run_folder(trainer, path, errors) if self.measured else None
        self._rank_files = RankFiles(
            self.folder, rank=int(trainer.global_rank), world_size=int(trainer.world_size), errors=errors
        )
        self._log = TrainerLog(trainer if options.log_metrics and self.measured else None, errors)
        self._leads = bool(trainer.is_global_zero)

    def start(self, trainer: Trainer, module: Module) -> None:
        """Start to observe.

        Raises:
            PrecisionError: A monitor that was asked for is not possible in this training.
        """
        if not self.measured:
            context = FitContext(TrainerLoop(trainer), None, self.errors)
            self._precision.add_monitors(self.observers, trainer, module, context, self._log)
            return
        for account in self._accounts:
            account.folder = self.folder
        context, setting = FitContext(TrainerLoop(trainer), self.folder, self.errors), self._precision.setting
        keep_fp32 = setting.keep_fp32 if setting is not None else ()
        record = FitRecord(context, trainer, keep_fp32=keep_fp32, hashed=self._options.fingerprint == "full")
        self._records.append(record)
        self.observers.add(record)
        if not self._in_study:  # monitors would slow down one arm and not the other
            self._precision.add_monitors(self.observers, trainer, module, context, self._log)
            self._add_requested_monitors(trainer, module, context)
        with self.errors.instead("this fit is not profiled"):
            self.fit = Fit(context, self._options.recording, self.observers, self._log, self._accounts)
        for account in self._accounts:
            account.training_starts()
        record.training_begins()

    def _add_requested_monitors(self, trainer: Trainer, module: Module, context: FitContext) -> None:
        """Add the shadow steps, the forecast of number formats and the monitor of FP8 layers, on rank 0."""
        if self.folder is None or not self._leads:
            return
        if shadow := self._options.shadow:  # first: the forecast does not sample the FP32 pass
            self.observers.add(ShadowMonitor(Replay(trainer, module, context.state), context, shadow))
        if (share := self._options.forecast) is not None:
            with self.errors.instead(ForecastMonitor.consequence, kind="forecast"):
                self.observers.add(ForecastMonitor(trainer, module, context, share))
        if layers := fp8_layers(module):
            self.observers.add(Fp8Monitor(trainer, layers, context))

    def finish(self, *, may_wait: bool = True) -> None:
        """End the observation. A second call does nothing."""
        if self._finished:
            return
        self._finished = True
        results = self.observers.finish(may_wait=may_wait)
        if not self._in_study:
            self._precision.keep_results(results, self.folder if self._leads else None, self.errors)
        for account in self._accounts:
            account.training_ends()
        self._log.close()

    def report(self, trainer: Trainer, exception: BaseException | None = None) -> None:
        """Close the run record, analyze the recorded steps, and print the report."""
        for record in self._records:
            record.ends(exception)
        self._records = []
        for account in self._accounts:
            account.save("report" if exception is None else "exception")
        self._rank_files.ends()
        fit, self.fit = self.fit, None
        if fit is None or not self._leads:
            return
        report = report_fit(
            fit,
            self._rank_files,
            trainer,
            error=exception,
            show=self._options.report,
            precision=self._precision.result,
            probe=self._options.probe,
            to_loggers=self._options.log_report,
        )
        if report is not None and self.folder is not None:
            for account in self._accounts:
                account.complete_report = functools.partial(complete_report, self.folder, report, fit.errors)
