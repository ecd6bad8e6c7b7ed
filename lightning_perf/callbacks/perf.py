"""`PerfCallback`, the callback that users add to a Trainer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, get_args

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.forecast.monitor import check_share
from lightning_perf.callbacks.lightning_compat import Module, Trainer, may_wait_for_device
from lightning_perf.callbacks.numerics.shadow import check_interval
from lightning_perf.callbacks.out_of_memory import report_out_of_memory
from lightning_perf.callbacks.precision.fp32_layers import LayerPattern
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.precision_callback import ObservedCallback, Precision, PrecisionCallback
from lightning_perf.callbacks.recording.recording_plan import CaptureOptions, Recording, check_choice
from lightning_perf.callbacks.report import ProbeOption, ReportLength, check_probe
from lightning_perf.callbacks.session import AttachedLog, FitSession, SessionOptions, open_account
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.run_files.launch import MeasurementStarted, NothingMeasured, OwnMeasurement, leave_note


class PerfCallback(ObservedCallback):
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
        with_stack: Record the Python code that called each operator; slows down the recorded steps. Under Python 3.12
            and later, torch before 2.12 can crash in that while other threads run. There it is left out.
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
        hang_after: Seconds without the end of a step or a batch after which a warning says where each rank is, and its
            Python stacks go to ``hang.rank0.txt``. The training is left alone. None for no such watch.
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
        active: int = Recording.active,
        repeat: int = Recording.repeat,
        record_shapes: bool = True,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        capture_slow_steps: CaptureOptions | bool = False,
        max_overhead: float | timedelta | None = None,
        forecast: bool | float = False,
        shadow: int = 0,
        ranks: Sequence[int] | None = None,
        hang_after: float | None = None,
        dirpath: str | os.PathLike[str] | None = None,
        fingerprint: Literal["full", "light"] = "full",
        probe: ProbeOption = None,
        report: ReportLength = "short",
        log_metrics: bool = True,
        log_report: bool = False,
    ) -> None:
        check_probe(probe)
        check_choice("report", report, get_args(ReportLength))
        check_choice("fingerprint", fingerprint, ("full", "light"))
        self._options = SessionOptions(
            recording=Recording.given(locals()),
            forecast=check_share(forecast),
            shadow=check_interval(shadow),
            dirpath=os.fspath(dirpath) if dirpath is not None else None,
            fingerprint=fingerprint,
            probe=probe,
            report=report,
            log_metrics=log_metrics,
            log_report=log_report,
        )
        self._changes_training = precision is not None or bool(keep_fp32) or tf32 is not None
        self._precision = PrecisionCallback(precision, keep_fp32=keep_fp32, tf32=tf32)
        self._precision.embed(must_work=self._changes_training)
        self._reset()

    _OF_A_FIT = ("_accounts", "_session", "_in_charge", "_parts")

    def _reset(self) -> None:
        self._accounts: list[FitAccountant] = []
        self._session: FitSession | None = None
        self._observers = Observers(ErrorReporter())
        self._in_charge = self._precision
        self._parts: tuple[PrecisionCallback, ...] = ()

    log = AttachedLog()

    def _on_attach(self, trainer: Trainer | None) -> None:
        self._close_accounts()  # the last fit ended without a call that we see
        self._accounts = open_account(trainer)

    def _close_accounts(self) -> None:
        for account in self._accounts:
            account.close()
        self._accounts = []

    @property
    def precision_part(self) -> PrecisionCallback | None:
        """The part that changes the training, as a callback of its own; None if this one only observes."""
        return self._precision if self._changes_training else None

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Switch the precision, or leave that to the `PrecisionCallback` that the Trainer has."""
        if all(account.closed for account in self._accounts):
            self._on_attach(trainer)
        others = [callback for callback in trainer.callbacks if isinstance(callback, PrecisionCallback)]
        if others and self._changes_training:
            raise PrecisionError(
                "PerfCallback was given a precision, keep_fp32 or tf32, and there is a PrecisionCallback as well",
                "Give all of it to the PrecisionCallback",
            )
        for other in others[:1]:
            other.hand_over()
        self._in_charge = others[0] if others else self._precision
        self._parts = () if others else (self._precision,)
        for part in self._parts:
            part.setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Check the precision before the first step, and keep layers in FP32."""
        for part in self._parts:
            part.on_fit_start(trainer, pl_module)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Account for the sanity check."""
        for account in self._accounts:
            account.sanity_check(True)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Account for the rest of the preparations."""
        for account in self._accounts:
            account.sanity_check(False)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Keep layers in FP32."""
        for part in self._parts:
            part.on_validation_start(trainer, pl_module)

    on_test_start = on_predict_start = on_validation_start

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start to observe the fit."""
        self._end_session()  # the last fit ended without `teardown`: another callback failed in `on_exception`
        self._session = FitSession(trainer, self._options, self._in_charge, self._accounts)
        self._observe(self._session.observers)
        self._session.start(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """End the observation."""
        if self._session is not None:
            self._session.finish()
            self._stop_observing()

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Close the run record, analyze the recorded steps, and print the report."""
        if self._session is not None:
            self._session.report(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Save the scaler's state also in a checkpoint made after the fit."""
        for part in self._parts:
            part.on_save_checkpoint(trainer, pl_module, checkpoint)
        self._observers.on_save_checkpoint(checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint to resume from has the scaler's state."""
        for part in self._parts:
            part.on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save everything recorded so far. The error comes from the training and passes unchanged."""
        batch_size = getattr(getattr(trainer, "train_dataloader", None), "batch_size", None)
        report_out_of_memory(
            exception,
            lambda: (pl_module, trainer.optimizers),
            self._session.errors if self._session is not None else ErrorReporter(),
            show=self._options.report,
            rank=int(trainer.global_rank),
            step=int(trainer.global_step),
            batch_size=batch_size if isinstance(batch_size, int) else None,
            precision=str(trainer.precision),
        )
        if self._session is not None:
            self._session.finish(may_wait=may_wait_for_device(trainer))
            self._stop_observing()
        for part in self._parts:
            part.on_exception(trainer, pl_module, exception)
        if self._session is not None:
            self._session.report(trainer, exception)
        for account in self._accounts if self._session is not None else ():
            account.save("exception")  # with the report: the Trainer calls us no more
        self._close_accounts()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Remove everything that the callback added to the Trainer."""
        self._end_session()
        for part in self._parts:
            part.teardown(trainer, pl_module, stage)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.finish()
            self._stop_observing()


class InjectedCallback(PerfCallback):
    """A `PerfCallback` that gives way to another one, and leaves notes for ``lightning-perf run``.

    It prints no report: the command prints it when the script has ended.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "report": "none"})

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Switch the precision, or leave the Trainer if it has another `PerfCallback`.

        The Trainer adds callbacks of entry points to the list that the script gave it. If two Trainers get the same
        list, the second one has two of these callbacks.
        """
        found = [callback for callback in trainer.callbacks if isinstance(callback, PerfCallback)]
        own = [callback for callback in found if not isinstance(callback, InjectedCallback)]
        if own:
            leave_note(OwnMeasurement("PerfCallback"))
        if next(iter((*own, *found)), self) is not self:
            # A new list: the Trainer goes through the old one just now.
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]
            return
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start to observe the fit, and name its folder to the command."""
        super().on_train_start(trainer, pl_module)
        if not trainer.is_global_zero:
            return
        if self._session is None or not self._session.measured:
            leave_note(NothingMeasured("the Trainer has fast_dev_run"))
        elif self._session.fit is not None:
            folder = self._session.folder
            leave_note(MeasurementStarted(str(folder) if folder is not None else None))
