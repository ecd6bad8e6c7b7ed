"""`PerfCallback`, the callback that users add to a Trainer."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.compiler import is_compiling

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.fit import Fit
from lightning_perf.callbacks.fit_monitors import FitMonitors
from lightning_perf.callbacks.forecast.monitor import check_share
from lightning_perf.callbacks.lightning_compat import LightningCallback, Module, Trainer
from lightning_perf.callbacks.numerics.shadow import check_interval
from lightning_perf.callbacks.out_of_memory import report_out_of_memory
from lightning_perf.callbacks.precision.fp32_layers import LayerPattern
from lightning_perf.callbacks.precision_callback import EmbeddedPrecision, Precision, PrecisionCallback
from lightning_perf.callbacks.probe_fit import ProbeOption, check_probe, probe_seconds
from lightning_perf.callbacks.recording.captures import CaptureOptions
from lightning_perf.callbacks.recording.recording_plan import check_choice, recording_plan
from lightning_perf.callbacks.recording.schedule import Schedule
from lightning_perf.callbacks.report import ReportLength, complete_report, leave_report, print_line, report_fit
from lightning_perf.callbacks.run_record.fit_record import FitRecord
from lightning_perf.callbacks.run_record.run_folder import RankFiles, claim_run_folder
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.callbacks.training_loop import TrainerLoop
from lightning_perf.run_files.fit.account import FitAccount, write_account
from lightning_perf.run_files.run_record import study_folder

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport

__all__ = ["PerfCallback"]


class PerfCallback(LightningCallback):
    """Finds out where the step time goes: times every step, profiles a few, and reports at the end of the fit.

    Works with the Trainers of `lightning.pytorch` and `pytorch_lightning`. The step timer is always on. It uses no
    profiler and never waits for the device. It saves ``steps.rank0.jsonl``, and adds ``perf/…`` to the rows that the
    Trainer logs. The profiler records a window of whole optimizer steps, from the fetch of the first batch to the end
    of callbacks and logging, and then stops. An error in the callback causes one warning. Training continues, with the
    same results as without the callback.

    Every fit leaves a run record, ``run.jsonl``, for ``lightning-perf compare``: its epochs and metrics, how it ended,
    and a fingerprint of settings, weights and data. A study names the folder, profiles only its warm-up (for the
    prediction), and monitors neither loss scale nor gradients. So all arms are timed alike.

    With `precision` it also switches the Trainer to mixed precision, as `PrecisionCallback` does. A conflict raises an
    error before the first step. The report names the precision of the fit and the kind of FP32 arithmetic. Under
    ``16-mixed`` it also covers the loss scale and gradient underflow. If you need more settings than the three here,
    add a `PrecisionCallback` to the Trainer as well.

    Args:
        precision: ``16-mixed``, ``bf16-mixed`` or ``32-true``; None to keep the Trainer's.
        keep_fp32: Layers that still compute in FP32: names with wildcards, or layer classes.
        tf32: ``on`` or ``off`` sets TF32 for FP32 products and convolutions during the fit; None leaves it alone.
        skip_first: Steps to skip at the start of the fit. Default: 10, or fewer in a short fit.
        wait: Steps to skip at the start of each cycle. Default: 0.
        warmup: Steps in each cycle in which the profiler runs but keeps nothing. Default: 3, or fewer in a short fit.
        active: Steps recorded in each cycle.
        repeat: Number of cycles, each with its own trace file; 0 to repeat until the fit ends.
        record_shapes: Record shapes and types of operator inputs. The report needs them to tell which arithmetic was
            used.
        profile_memory: Record allocations. The report then shows the memory at its peak by category and operator, and
            the memory that larger batches need.
        with_stack: Record the Python code that called each operator; slows down the recorded steps.
        with_flops: Record the floating-point operations of matrix products and convolutions, by formula.
        capture_slow_steps: Record more steps when steps become slow, or on demand: True for the defaults, or a
            `CaptureOptions`.
        max_overhead: The most that the profiler may cost: a fraction of the fit's time (0.02) or a
            `datetime.timedelta`. A window that would exceed it is left out, except the first one. None for no limit.
        forecast: Forecast how FP16, BF16, FP8, MXFP8 and NVFP4 would round each layer. True spends at most 1 % of the
            fit's time on samples; a number sets another share.
        shadow: Every so many steps, run the batch once more in FP32 without an update, and compare loss and gradients;
            0 for never.
        ranks: Ranks that record; None for all. Rank 0 reports in any case.
        dirpath: Folder for traces, step times, ``run.jsonl`` and ``report.json``; with the suffix ``_1``, ``_2``, … if
            it is not empty. Default: ``perf`` in the Trainer's log directory.
        fingerprint: ``full`` hashes the initial weights and the data sets for the run record, large ones by sample.
            ``light`` skips these hashes. Then ``compare`` cannot tell whether two runs had the same data and weights.
        probe: Run the recorded operators again after the fit, in a worker process, to estimate the savings of findings
            on this device. True for 5 s, a number for other seconds, False for never. None probes after fits of one
            rank in which 5 s are at most a tenth of the time.
        report: How much to print at the end of the fit. ``short``: the verdict, the findings' titles and the command
            for the full report. ``full``: all of it. ``none``: nothing.
        log_metrics: Log step times to the Trainer's loggers, as ``perf/…`` in the rows that the Trainer logs.
        log_report: Send the report to the Trainer's loggers at the end of the fit. Every logger gets the key figures.
            Weights & Biases and MLflow also get the page ``report.html`` as an artifact. TensorBoard gets the verdict
            as text.

    Raises:
        TypeError: A number of steps is not an integer, `keep_fp32` is a single string, or an option has the wrong type.
        ValueError: A number of steps or a rank is negative, `active` is 0, `max_overhead` is not between 0 and 1, or an
            option has an unknown value.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[PerfCallback()], logger=False)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        precision: Precision | None = None,
        keep_fp32: Sequence[LayerPattern] = (),
        tf32: Literal["on", "off"] | None = None,
        skip_first: int | None = None,
        wait: int | None = None,
        warmup: int | None = None,
        active: int = Schedule.active,
        repeat: int = Schedule.repeat,
        record_shapes: bool = True,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        capture_slow_steps: CaptureOptions | bool = False,
        max_overhead: float | timedelta | None = None,
        forecast: bool | float = False,
        shadow: int = 0,
        ranks: Sequence[int] | None = None,
        dirpath: str | os.PathLike[str] | None = None,
        fingerprint: Literal["full", "light"] = "full",
        probe: ProbeOption = None,
        report: ReportLength = "short",
        log_metrics: bool = True,
        log_report: bool = False,
    ) -> None:
        self._plan = recording_plan(
            skip_first=skip_first,
            wait=wait,
            warmup=warmup,
            active=active,
            repeat=repeat,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            capture_slow_steps=capture_slow_steps,
            max_overhead=max_overhead,
            ranks=ranks,
        )
        check_probe(probe)
        self._probe = probe
        self._began_s = 0.0
        self._forecast_share = check_share(forecast)
        self._shadow = check_interval(shadow)
        self._dirpath = os.fspath(dirpath) if dirpath is not None else None
        check_choice("report", report, get_args(ReportLength))
        check_choice("fingerprint", fingerprint, ("full", "light"))
        self._fingerprint = fingerprint
        self._report = report
        self._log_metrics = log_metrics
        self._log_report = log_report
        self._trainer_log: TrainerLog | None = None
        self._fit: Fit | None = None
        self._monitors: FitMonitors | None = None
        self._record: FitRecord | None = None
        self._rank_files: RankFiles | None = None
        self._account: FitAccountant | None = None
        self._account_folder: Path | None = None
        self._reported: tuple[PerfReport, ErrorReporter] | None = None
        self._precision = EmbeddedPrecision(
            PrecisionCallback(precision, keep_fp32=keep_fp32, tf32=tf32),
            asked=precision is not None or bool(keep_fp32) or tf32 is not None,
        )

    @property
    def precision_part(self) -> PrecisionCallback | None:
        """The part that changes the training, as a callback of its own; None if this one only observes."""
        return self._precision.callback if self._precision.asked else None

    def __getstate__(self) -> dict[str, Any]:
        """Copy the settings only: a copy takes no part in a running fit."""
        # `log` and `log_dict` are put there by the Trainer and lead to the whole module.
        return {name: value for name, value in self.__dict__.items() if name not in ("log", "log_dict")} | {
            "_fit": None,
            "_monitors": None,
            "_record": None,
            "_rank_files": None,
            "_trainer_log": None,
            "_account": None,
            "_account_folder": None,
            "_reported": None,
        }

    @property
    def log(self) -> Any:
        """The module's `log`, which the Trainer gives to every callback."""
        return self.__dict__.get("log")

    @log.setter
    def log(self, function: Any) -> None:
        # The Trainer assigns it at the start of every fit, before it prepares data: no hook of a callback is as early.
        self.__dict__["log"] = function
        module = getattr(function, "__self__", None)
        self._open_account(getattr(module, "_trainer", None))

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Switch the precision, or leave that to the `PrecisionCallback` that the Trainer has."""
        if self._account is None:
            self._open_account(trainer)
        self._precision.setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Check the precision before the first step, and keep layers in FP32."""
        self._precision.call(self._precision.callback.on_fit_start, trainer, pl_module)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Account for the sanity check."""
        if self._account is not None:
            self._account.sanity_check_starts()

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Account for the rest of the preparations."""
        if self._account is not None:
            self._account.sanity_check_ends()

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Keep layers in FP32."""
        self._precision.call(self._precision.callback.on_validation_start, trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Keep layers in FP32."""
        self._precision.call(self._precision.callback.on_test_start, trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Keep layers in FP32."""
        self._precision.call(self._precision.callback.on_predict_start, trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start to observe the fit."""
        self._began_s = time.perf_counter()
        if self._fit is not None:  # the last fit ended without `teardown`: another callback failed in `on_exception`
            self._fit.finish()
            self._fit = None
        self._close_log()
        errors = ErrorReporter()
        if trainer.fast_dev_run and study_folder() is None:
            self._close_account()
            self._precision.watch(trainer, pl_module, None, errors, None)
            if self._report != "none" and trainer.is_global_zero:
                print_line("PerfCallback: nothing is measured under fast_dev_run.")
            return
        # A collective call: every rank makes it, even if one of them has failed.
        folder = claim_run_folder(trainer, study_folder() or self._dirpath, errors)
        self._account_folder = folder
        world_size = int(trainer.world_size)
        self._rank_files = RankFiles(folder, rank=int(trainer.global_rank), world_size=world_size, errors=errors)
        self._trainer_log = TrainerLog(trainer, errors) if self._log_metrics else None
        if study_folder() is None:  # in a study the monitors would slow down one arm and not the other
            self._precision.watch(trainer, pl_module, folder, errors, self._trainer_log)
        self._record = FitRecord(
            trainer, pl_module, folder, errors, self._precision.fp32_layers, hashed=self._fingerprint == "full"
        )
        try:
            self._fit = Fit(
                TrainerLoop(trainer),
                plan=self._plan,
                folder=folder,
                errors=errors,
                trainer_log=self._trainer_log,
                account=self._account,
            )
        except Exception as error:
            errors.report("this fit is not profiled", error)
            if self._account is not None:
                self._account.attach()
        self._start_monitors(trainer, pl_module, folder, errors)
        if self._account is not None:
            self._account.training_starts()
        self._record.training_begins()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Record the epoch before."""
        if self._record is not None:
            self._record.metrics_complete()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        """Start the batch, and count its samples."""
        if self._record is not None:
            self._record.batch_begins(batch)
        if self._precision.monitors is not None:
            self._precision.monitors.on_train_batch_start(batch, batch_idx)
        if self._monitors is not None:
            self._monitors.on_batch_start(batch, batch_idx)
        if self._fit is not None:
            self._fit.on_batch_start(batch)

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: Any) -> None:
        """Start the backward phase."""
        if is_compiling():
            return
        if self._precision.monitors is not None:
            self._precision.monitors.on_before_backward(loss)
        if self._fit is not None:
            self._fit.on_backward_start()

    def on_after_backward(self, trainer: Trainer, pl_module: Module) -> None:
        """End the backward phase."""
        if is_compiling():
            return
        if self._fit is not None:
            self._fit.on_backward_end()
        if self._precision.monitors is not None:
            self._precision.monitors.on_after_backward()
        if self._monitors is not None:
            self._monitors.on_after_backward()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Any) -> None:
        """Start the optimizer phase."""
        if is_compiling():
            return
        if self._fit is not None:
            self._fit.on_optimizer_start()
        if self._precision.monitors is not None:
            self._precision.monitors.on_before_optimizer_step(optimizer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the batch, and with it perhaps the step."""
        if self._precision.monitors is not None:
            self._precision.monitors.on_train_batch_end(outputs)
        if self._monitors is not None:
            self._monitors.on_batch_end(outputs)
        if self._fit is not None:
            self._fit.on_batch_end(automatic=bool(pl_module.automatic_optimization))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Note that the epoch has ended."""
        if self._precision.monitors is not None:
            self._precision.monitors.on_train_epoch_end()
        if self._record is not None:
            self._record.epoch_ends()

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """End the observation."""
        if self._fit is not None:
            self._fit.finish()
        if self._account is not None:
            self._account.training_ends()
        self._close_log()
        if self._record is not None:
            self._record.metrics_complete()
        self._end_monitors()
        self._precision.call(self._precision.callback.on_train_end, trainer, pl_module)
        if self._rank_files is not None:
            self._rank_files.ends()

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Close the run record, analyze the recorded steps, and print the report."""
        if self._record is not None:
            self._record.finishes()
        if self._account is not None:
            self._save_account(self._account.snapshot("report"))
        self._report_fit(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Save the scaler's state also in a checkpoint made after the fit."""
        self._precision.call(self._precision.callback.on_save_checkpoint, trainer, pl_module, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint to resume from has the scaler's state."""
        self._precision.call(self._precision.callback.on_load_checkpoint, trainer, pl_module, checkpoint)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save everything recorded so far. The error comes from the training and passes unchanged."""
        self._report_out_of_memory(trainer, pl_module, exception)
        self._precision.call(self._precision.callback.on_exception, trainer, pl_module, exception)
        if self._fit is not None:
            self._fit.finish(may_wait=int(trainer.world_size) == 1)
        self._end_monitors()
        self._close_log()
        if self._record is not None:
            self._record.fails(exception)
        if self._account is not None:
            self._account.training_ends()
            self._save_account(self._account.snapshot("exception"))
        if self._rank_files is not None:
            self._rank_files.ends()
        self._report_fit(trainer, exception)
        self._record = None
        if self._account is not None:
            self._save_account(self._account.snapshot("exception"))  # with the report: the Trainer calls us no more
        self._close_account()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Remove everything that the callback added to the Trainer."""
        self._end_monitors()
        self._precision.call(self._precision.callback.teardown, trainer, pl_module, stage)
        if self._fit is not None:
            self._fit.finish()
            self._fit = None
        self._close_log()
        self._trainer_log = self._record = None
        self._rank_files = None

    def _report_out_of_memory(self, trainer: Trainer, module: Module, exception: BaseException) -> None:
        """Report an error about memory at once: everything else here needs memory itself."""
        fit = self._fit
        loader = getattr(trainer, "train_dataloader", None)
        batch_size = getattr(loader, "batch_size", None)
        lines = report_out_of_memory(
            exception,
            lambda: (module, trainer.optimizers),
            fit.errors if fit is not None else ErrorReporter(),
            folder=self._account_folder,
            rank=int(trainer.global_rank),
            step=int(trainer.global_step),
            batch_size=batch_size if isinstance(batch_size, int) else None,
        )
        if self._report != "none":
            for line in lines:
                print_line(line)

    def _start_monitors(self, trainer: Trainer, module: Module, folder: Path | None, errors: ErrorReporter) -> None:
        self._end_monitors()
        if study_folder() is not None:  # monitors would slow down one arm and not the other
            return
        fit = self._fit
        monitors = FitMonitors(
            trainer,
            module,
            folder=folder,
            errors=errors,
            forecast=self._forecast_share,
            profiling=lambda: fit is not None and fit.profiling,
            shadow=self._shadow,
        )
        self._monitors = monitors if monitors.active else None

    def _end_monitors(self) -> None:
        monitors, self._monitors = self._monitors, None
        if monitors is not None:
            monitors.finish()

    def _open_account(self, trainer: Trainer) -> None:
        """Start the account of a fit. Nothing happens for other functions of a Trainer."""
        try:
            if trainer is None or trainer.state.fn != "fit":
                return
            self._close_account()  # the last fit ended without a call that we see
            self._account = FitAccountant(trainer, on_end=self._finish_account)
        except Exception as error:
            ErrorReporter().report("the account of the fit is left out", error)

    def _save_account(self, account: FitAccount | None) -> None:
        if account is None or self._account is None or self._account_folder is None:
            return
        try:
            write_account(self._account_folder, account)
        except Exception as error:
            self._account.errors.report("the account of the fit is not saved", error)

    def _finish_account(self) -> None:
        """Save the account of the whole fit, in place of the one until the report."""
        accountant = self._account
        if accountant is None:
            return
        accountant.close()
        # Writing the report again takes longer than writing the account, so the account comes last and includes it.
        if self._reported is not None and self._account_folder is not None:
            account = accountant.snapshot("returned")
            if account is not None:
                report, errors = self._reported
                complete_report(self._account_folder, report, account, errors)
        self._save_account(accountant.snapshot("returned"))
        self._close_account()

    def _close_account(self) -> None:
        account, self._account, self._account_folder, self._reported = self._account, None, None, None
        if account is not None:
            account.close()

    def _close_log(self) -> None:
        if self._trainer_log is not None:
            self._trainer_log.close()

    def _report_fit(self, trainer: Trainer, exception: BaseException | None = None) -> None:
        fit, self._fit = self._fit, None
        log, self._trainer_log = self._trainer_log, None
        files, self._rank_files = self._rank_files, None
        # Without a step the error itself is all there is to report.
        failed = exception is not None
        if fit is None or not trainer.is_global_zero or (failed and fit.is_empty):
            return
        if isinstance(exception, Exception) and int(trainer.world_size) > 1:
            leave_report(fit, files, self._report)
            return
        fit_s = time.perf_counter() - self._began_s
        probe_s = 0.0 if failed else probe_seconds(self._probe, fit_s, int(trainer.world_size))
        report = report_fit(
            fit,
            files,
            trainer,
            precision=self._precision.result,
            failed=failed,
            show=self._report,
            trainer_log=log,
            probe_s=probe_s,
            probe_requested=self._probe is not None,
            to_loggers=self._log_report,
        )
        self._reported = (report, fit.errors) if report is not None else None
