"""One fit under observation: everything that follows it, wired together, from its first step to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.recording.captures import CaptureOptions, Captures
from lightning_perf.callbacks.recording.data_loading import data_loading
from lightning_perf.callbacks.recording.overhead_budget import OverheadBudget
from lightning_perf.callbacks.recording.profiler import WindowProfiler
from lightning_perf.callbacks.recording.schedule import (
    Schedule,
    WindowPlan,
    expected_steps,
    fit_schedule,
    recording_notes,
)
from lightning_perf.callbacks.recording.torch_profiler import RecordingOptions
from lightning_perf.callbacks.steps.core_waits import CoreWaits
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.hook_times import HookTimes
from lightning_perf.callbacks.steps.lightning_hooks import OptimizerHooks, ProfilerHooks
from lightning_perf.callbacks.steps.page_fault_counter import PageFaultCounter
from lightning_perf.callbacks.steps.step_log import StepLog
from lightning_perf.callbacks.steps.step_timer import StepTimer, cuda_clock
from lightning_perf.callbacks.steps.step_tracker import StepTracker
from lightning_perf.run_files.jsonl import LogWriter
from lightning_perf.run_files.run_record import study_folder, study_place
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.run_files.windows import WINDOWS, RecordedWindow

__all__ = ["Fit"]

T = TypeVar("T")


class Fit:
    """Observes one fit of a Trainer.

    Whatever fails in here is reported once and ends the observation, not the training.

    Args:
        trainer: The Trainer, at the start of training.
        schedule: Which steps to record.
        chosen: Its fields that may be shortened for a short fit.
        options: What to record.
        folder: Where files go; None to write none.
        errors: Where errors are reported.
        captures: When steps outside of the schedule are recorded; None for never.
        max_overhead: What the profiler may cost; None for any.
        ranks: The ranks that record; None for all.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        schedule: Schedule,
        chosen: Collection[str],
        options: RecordingOptions,
        folder: Path | None,
        errors: ErrorReporter,
        captures: CaptureOptions | None = None,
        max_overhead: float | timedelta | None = None,
        ranks: Collection[int] | None = None,
    ) -> None:
        self.folder = folder
        self.errors = errors
        self._schedule, self._shortened = fit_schedule(schedule, chosen, expected_steps(trainer))
        self._refusal = _refusal(trainer, folder, ranks)
        rank = int(trainer.global_rank)
        device = trainer.strategy.root_device
        self._state = state = FitState()
        self._profiler: WindowProfiler | None = None
        self._captures: Captures | None = None
        self._budget: OverheadBudget | None = None
        page_faults: PageFaultCounter | None = None
        core_waits: CoreWaits | None = None
        hook_times: HookTimes | None = None
        windows_path = WINDOWS.path(folder, rank) if folder is not None else None
        self._windows = LogWriter(WINDOWS, windows_path, errors.report, "what the profiler cost is no longer saved")
        if self._refusal is None and folder is not None:
            plan = WindowPlan(self._schedule, folder)
            core_waits = CoreWaits(state)
            hook_times = HookTimes(trainer)
            if device.type == "cpu":
                page_faults = PageFaultCounter(state)
            if max_overhead is not None:
                self._budget = OverheadBudget(max_overhead, state)
            self._profiler = WindowProfiler(
                state,
                plan=plan,
                options=options,
                device_type=device.type,
                rank=rank,
                errors=errors,
                on_window=self._on_window,
                budget=self._budget,
                page_faults=page_faults,
                core_waits=core_waits,
                loader=_loader_facts(trainer, errors),
                hook_times=hook_times,
            )
            if captures is not None:
                self._captures = Captures(
                    captures,
                    state,
                    plan=plan,
                    rank=rank,
                    world_size=int(trainer.world_size),
                    folder=folder,
                    errors=errors,
                )
        self._log = StepLog(
            state,
            path=STEPS.path(folder, rank) if folder is not None else None,
            send=_logger_sender(trainer),
            log_every=int(trainer.log_every_n_steps),
            errors=errors,
        )
        self._timer = StepTimer(
            state,
            on_sample=self._log.add,
            device_clock=cuda_clock(device) if device.type == "cuda" else None,
        )
        # The order of calls. At the start of a step the profiler decides first whether it runs, which the others read
        # from the state, and the timer's clock starts last. At the end that clock stops first, the window closes when
        # all are done with the step, and files are written last: nothing of this is timed or recorded.
        self._tracker = StepTracker(
            state,
            trainer,
            at_start=_present(self._profiler, self._captures, self._budget, page_faults, core_waits, self._timer),
            at_end=_present(self._timer, page_faults, self._budget, self._captures, self._profiler, self._log),
            phases=_present(self._profiler, self._timer),
        )
        self._observing = True
        self._hook_times = hook_times
        self._profiler_hooks = ProfilerHooks(
            trainer.profiler,
            on_start=self._tracker.on_action_start,
            on_stop=self._tracker.on_action_end,
            on_error=self._give_up,
            times=hook_times,
        )
        self._optimizer_hooks = OptimizerHooks(
            on_start=self._tracker.on_optimizer_step_start,
            on_end=self._on_optimizer_step_end,
            on_error=self._give_up,
        )
        if self._captures is not None:
            try:
                self._captures.listen()  # last: where something above fails nobody would give the signal back
            except Exception as error:
                self._give_up(error)

    def unsaved_samples(self) -> tuple[StepSample, ...]:
        """The step times of this rank that no file holds."""
        return self._log.unsaved()

    @property
    def is_empty(self) -> bool:
        """Whether it came to no whole step and no trace."""
        return not self._state.whole_steps and not (self._profiler is not None and self._profiler.files)

    def notes(self) -> list[str]:
        """What the user should know of the recording: one line each."""
        notes = [self._shortened] if self._shortened is not None else []
        if self._refusal is not None:
            notes = [self._refusal]
        elif self._profiler is not None:
            steps, recorded = self._state.whole_steps, self._profiler.recorded_steps
            foreign = self._profiler.foreign_profiler
            refused = self._budget.refused if self._budget is not None else 0
            # What the budget did not allow needs no further reason.
            if refused:
                notes.append(f"max_overhead is used up: {refused} further windows of the profiler were left out.")
            else:
                notes += recording_notes(self._schedule, steps, recorded, foreign_profiler=foreign)
        if self._captures is not None and self._captures.full:
            notes.append("Captures take max_bytes of the disk: further ones were left out.")
        return [*notes, *self.errors.messages]

    # Each hook guards itself: one more call between the hook and the trace would cost time in every step.

    def on_batch_start(self, batch: Any) -> None:
        """Training on a batch starts."""
        if self._observing:
            try:
                self._tracker.on_batch_start()
                self._timer.count_samples(batch)
            except Exception as error:
                self._give_up(error)

    def on_batch_end(self, *, automatic: bool) -> None:
        """Training on a batch has ended."""
        if self._observing:
            try:
                self._tracker.on_batch_end(automatic=automatic)
            except Exception as error:
                self._give_up(error)

    def on_backward_start(self) -> None:
        """Backward starts."""
        if self._observing:
            try:
                self._tracker.on_backward_start()
            except Exception as error:
                self._give_up(error)

    def on_backward_end(self) -> None:
        """Backward has ended."""
        if self._observing:
            try:
                self._tracker.on_backward_end()
            except Exception as error:
                self._give_up(error)

    def on_optimizer_start(self) -> None:
        """An optimizer is about to step."""
        if self._observing:
            try:
                self._tracker.on_optimizer_start()
            except Exception as error:
                self._give_up(error)

    def finish(self) -> None:
        """Training has ended or failed: close what is open, save what there is, give the Trainer its profiler back."""
        self._remove_hooks()
        if self._observing:
            try:
                self._tracker.finish()
                if self._profiler is not None:
                    self._profiler.on_training_pause()
                self._timer.finish()
                self._log.write()
            except Exception as error:
                self._give_up(error)
        self._observing = False

    def _remove_hooks(self) -> None:
        self._profiler_hooks.remove()
        self._optimizer_hooks.remove()
        if self._profiler is not None:
            self._profiler.close()
        if self._captures is not None:
            self._captures.close()

    def _give_up(self, error: Exception) -> None:
        """Report the error and end the observation, not the training."""
        if not self._observing:
            return
        self._observing = False
        self._remove_hooks()
        self.errors.report("profiling is off for the rest of this fit", error)
        try:
            if self._profiler is not None:
                self._profiler.abandon()
            self._log.write()
        except Exception as further:
            self.errors.report("what was measured so far may be incomplete", further)

    def _on_optimizer_step_end(self) -> None:
        self._tracker.on_optimizer_step_end()
        if self._hook_times is not None:
            self._hook_times.optimizer_ends()

    def _on_window(self, window: RecordedWindow) -> None:
        if self._budget is not None:
            self._budget.window_ends(window.pause_ns + window.export_ns)
        if self._captures is not None and window.capture:
            self._captures.window_ends(window.trace_bytes)
        self._windows.append(window)


def _present(*observers: T | None) -> list[T]:
    return [observer for observer in observers if observer is not None]


def _loader_facts(trainer: Trainer, errors: ErrorReporter) -> dict[str, str | int | bool | None]:
    try:
        return data_loading(trainer)
    except Exception as error:  # datasets and samplers may be of any make
        errors.report("how batches are made is not noted", error)
        return {}


def _refusal(trainer: Trainer, folder: Path | None, ranks: Collection[int] | None) -> str | None:
    if folder is None:
        return "No step was recorded: there is no folder to write traces to."
    place = study_place()
    # The warm-up of a study is not timed: profiled, it yields the prediction that the study then checks.
    if study_folder() is not None and (place is None or place.block != 0):
        return "No step was recorded: the run is part of a study, and timed runs are not profiled."
    # By name: either package has a class of its own.
    if any(base.__name__ == "PyTorchProfiler" for base in type(trainer.profiler).__mro__):
        return (
            "No step was recorded: the Trainer's own PyTorchProfiler records already, and two at a time crash. "
            'Leave out Trainer(profiler="pytorch") to have this report.'
        )
    if ranks is not None and trainer.global_rank not in ranks:
        return f"Rank {trainer.global_rank} recorded no step: PerfCallback(ranks=…) leaves it out."
    return None


def _logger_sender(trainer: Trainer) -> Callable[[dict[str, float], int], None] | None:
    if not trainer.is_global_zero or not trainer.loggers:
        return None

    def send(metrics: dict[str, float], step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)

    return send
