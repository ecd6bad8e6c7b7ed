"""One fit of a Trainer with a `PerfCallback`, from the start of training to the report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from lightning_perf.callbacks.account_keeper import AccountKeeper
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.fit import Fit
from lightning_perf.callbacks.fit_monitors import add_requested_monitors
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.callbacks.probe_fit import ProbeOption, probe_seconds
from lightning_perf.callbacks.recording.recording_plan import Recording
from lightning_perf.callbacks.report import ReportLength, leave_report, print_line, report_fit
from lightning_perf.callbacks.run_record.fit_record import FitRecord
from lightning_perf.callbacks.run_record.run_folder import RankFiles, claim_run_folder
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.callbacks.training_loop import TrainerLoop
from lightning_perf.run_files.run_record import study_folder


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The options of a `PerfCallback` that hold for each of its fits. It describes them.

    Attributes:
        forecast: Share of the fit's time for the forecast; None for no forecast.
    """

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
    """Observes one fit, and reports on it.

    Args:
        embedded: Whether that one is part of this `PerfCallback`, so that its monitors are among the observers here.
            Otherwise the Trainer calls its hooks.
    """

    def __init__(
        self,
        trainer: Trainer,
        options: SessionOptions,
        precision: PrecisionCallback,
        account: AccountKeeper,
        *,
        embedded: bool,
    ) -> None:
        self._began_s = time.perf_counter()
        self._options = options
        self._precision = precision
        self._embedded = embedded
        self._keeps_results = False
        self._account = account
        self._finished = False
        self.errors = errors = ErrorReporter()
        self.observers = Observers(errors)
        self.fit: Fit | None = None
        """The steps of the fit; None if they are not observed."""
        self._records: list[FitRecord] = []
        self.measured = not trainer.fast_dev_run or study_folder() is not None
        """Whether the fit is measured; a trial run of the Trainer is not."""
        if not self.measured:
            account.close()
            if options.report != "none" and trainer.is_global_zero:
                print_line("PerfCallback: nothing is measured under fast_dev_run.")
        # A collective call: every rank makes it, even if one of them has failed.
        path = study_folder() or options.dirpath
        self.folder = errors.folder = claim_run_folder(trainer, path, errors) if self.measured else None
        self._summary_folder = self.folder if trainer.is_global_zero else None
        self._rank_files = RankFiles(
            self.folder, rank=int(trainer.global_rank), world_size=int(trainer.world_size), errors=errors
        )
        self._log = TrainerLog(trainer if options.log_metrics and self.measured else None, errors)

    def start(self, trainer: Trainer, module: Module) -> None:
        """Start to observe.

        Raises:
            PrecisionError: A monitor that was asked for is not possible in this training.
        """
        if not self.measured:
            self._watch_numbers(trainer, module)
            return
        options, errors, observers = self._options, self.errors, self.observers
        self._account.folder = self.folder
        state = FitState()
        in_study = study_folder() is not None  # monitors would slow down one arm and not the other
        setting = self._precision.setting
        record = FitRecord(
            trainer,
            module,
            self.folder,
            errors,
            setting.keep_fp32 if setting is not None else (),
            hashed=options.fingerprint == "full",
        )
        self._records.append(record)
        observers.add(record)
        if not in_study:
            self._watch_numbers(trainer, module)
            add_requested_monitors(
                observers,
                trainer,
                module,
                folder=self.folder,
                errors=errors,
                state=state,
                forecast=options.forecast,
                shadow=options.shadow,
            )
        try:
            self.fit = self._new_fit(trainer, state)
        except Exception as error:
            errors.report("this fit is not profiled", error)
            for accountant in self._account.accountants:
                accountant.attach()
        for accountant in self._account.accountants:
            accountant.training_starts()
        record.training_begins()

    def _new_fit(self, trainer: Trainer, state: FitState) -> Fit:
        return Fit(
            TrainerLoop(trainer),
            recording=self._options.recording,
            folder=self.folder,
            observers=self.observers,
            state=state,
            errors=self.errors,
            trainer_log=self._log,
            accounts=self._account.accountants,
        )

    def _watch_numbers(self, trainer: Trainer, module: Module) -> None:
        if self._embedded:
            self._keeps_results = True
            self._precision.add_monitors(self.observers, trainer, module, self.folder, self.errors, self._log)
        else:
            self._precision.watch(trainer, module, self.folder, self.errors, self._log)

    def finish(self, *, may_wait: bool = True) -> None:
        """End the observation. A second call does nothing."""
        if self._finished:
            return
        self._finished = True
        results = self.observers.finish(may_wait=may_wait)
        if self._keeps_results:
            self._precision.keep_results(results, self._summary_folder, self.errors)
        for accountant in self._account.accountants:
            accountant.training_ends()
        self._log.close()

    def mark_as_done(self) -> None:
        """Let the other ranks know that the files of this one are written."""
        self._rank_files.ends()

    def report(self, trainer: Trainer, exception: BaseException | None = None) -> None:
        """Close the run record, analyze the recorded steps, and print the report."""
        for record in self._records:
            if exception is None:
                record.finishes()
            else:
                record.fails(exception)
        self._records = []
        self._account.save("report" if exception is None else "exception")
        self.mark_as_done()
        fit, self.fit = self.fit, None
        failed = exception is not None
        # Without a step the error itself is all there is to report.
        if fit is None or not trainer.is_global_zero or (failed and fit.is_empty):
            return
        if isinstance(exception, Exception) and int(trainer.world_size) > 1:
            leave_report(fit, self._rank_files, self._options.report)
            return
        probe, world_size = self._options.probe, int(trainer.world_size)
        self._account.report = report_fit(
            fit,
            self._rank_files,
            trainer,
            precision=self._precision.result,
            failed=failed,
            show=self._options.report,
            trainer_log=self._log,
            probe_s=0.0 if failed else probe_seconds(probe, time.perf_counter() - self._began_s, world_size),
            probe_requested=probe is not None,
            to_loggers=self._options.log_report,
        )
        self._account.report_errors = fit.errors
