"""One fit under observation: the tap, the tracker and what follows them, from its first step to its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning_perf.analysis.recorded_windows import RecordedWindow, encode_window
from lightning_perf.analysis.step_times import StepSample
from lightning_perf.callbacks.error_reporter import Faults
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.recording.captures import Captures
from lightning_perf.callbacks.recording.fit_schedule import expected_steps, fit_schedule, recording_notes
from lightning_perf.callbacks.recording.overhead_budget import OverheadBudget
from lightning_perf.callbacks.recording.profiler import WindowProfiler
from lightning_perf.callbacks.recording.schedule import Schedule
from lightning_perf.callbacks.recording.slow_steps import CaptureOptions
from lightning_perf.callbacks.recording.torch_profiler import RecordingOptions
from lightning_perf.callbacks.recording.window_plan import WindowPlan
from lightning_perf.callbacks.run_record.recorder import study_folder, study_place
from lightning_perf.callbacks.step_numbers import StepNumbers, step_number
from lightning_perf.callbacks.steps.device_clock import cuda_clock
from lightning_perf.callbacks.steps.lightning_hooks import OptimizerTap, ProfilerTap
from lightning_perf.callbacks.steps.page_fault_counter import FaultCounter
from lightning_perf.callbacks.steps.step_log import StepLog
from lightning_perf.callbacks.steps.step_timer import StepTimer
from lightning_perf.callbacks.steps.step_tracker import StepTracker

__all__ = ["Fit"]


class Fit:
    """Observes one fit of a Trainer.

    Whatever fails in here is reported once and ends the observation, not the training.

    Args:
        trainer: The Trainer, at the start of training.
        schedule: Which steps to record.
        chosen: Its fields that may be shortened for a short fit.
        options: What to record.
        folder: Where files go; None to write none.
        faults: Where faults are reported.
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
        faults: Faults,
        captures: CaptureOptions | None = None,
        max_overhead: float | timedelta | None = None,
        ranks: Collection[int] | None = None,
    ) -> None:
        self.folder = folder
        self.faults = faults
        self._schedule, self._shortened = fit_schedule(schedule, chosen, expected_steps(trainer))
        self._refusal = _refusal(trainer, folder, ranks)
        rank = int(trainer.global_rank)
        numbers = StepNumbers(functools.partial(step_number, trainer))
        device = trainer.strategy.root_device
        self._profiler: WindowProfiler | None = None
        self._captures: Captures | None = None
        self._budget: OverheadBudget | None = None
        page_faults: FaultCounter | None = None
        self._windows_path = folder / f"windows.rank{rank}.jsonl" if folder is not None else None
        if self._refusal is None and folder is not None:
            plan = WindowPlan(self._schedule, folder)
            if device.type == "cpu":
                page_faults = FaultCounter(is_profiling=self._is_profiling)
            if max_overhead is not None:
                self._budget = OverheadBudget(max_overhead, is_profiling=self._is_profiling)
            self._profiler = WindowProfiler(
                plan=plan,
                options=options,
                device_type=device.type,
                numbers=numbers,
                rank=rank,
                faults=faults,
                may_begin=self._budget.allows if self._budget is not None else lambda: True,
                on_window=self._window_ends,
                page_faults=page_faults.a_step if page_faults is not None else lambda: None,
            )
            if captures is not None:
                self._captures = Captures(
                    captures,
                    plan=plan,
                    numbers=numbers,
                    rank=rank,
                    world_size=int(trainer.world_size),
                    folder=folder,
                    faults=faults,
                    is_profiling=self._is_profiling,
                )
        self._log = StepLog(
            numbers=numbers,
            path=folder / f"steps.rank{rank}.jsonl" if folder is not None else None,
            send=_logger_sender(trainer),
            log_every=int(trainer.log_every_n_steps),
            faults=faults,
        )
        self._timer = StepTimer(
            numbers=numbers,
            sink=self._log,
            is_profiling=self._is_profiling,
            device_clock=cuda_clock(device) if device.type == "cuda" else None,
        )
        # At the end of a step they are told in reverse: the clock stops, the window closes, and then files are written.
        observers = (self._log, self._profiler, self._captures, self._budget, page_faults, self._timer)
        self._tracker = StepTracker(lambda: int(trainer.global_step), *(each for each in observers if each is not None))
        self._observing = True
        self._tap = ProfilerTap(
            trainer.profiler,
            on_start=functools.partial(self._observe, self._tracker.starts),
            on_stop=functools.partial(self._observe, self._tracker.stops),
        )
        self._optimizer_tap = OptimizerTap(
            on_enter=functools.partial(self._observe, self._tracker.optimizer_enters),
            on_leave=functools.partial(self._observe, self._tracker.optimizer_leaves),
        )
        if self._captures is not None:
            self._observe(self._captures.listen)  # last: where something above fails nobody would give the signal back

    def samples(self) -> tuple[StepSample, ...]:
        """The step times of this rank."""
        return self._log.samples()

    @property
    def is_empty(self) -> bool:
        """Whether it came to no whole step and no trace."""
        return not self._tracker.steps and not (self._profiler is not None and self._profiler.files)

    def notes(self) -> list[str]:
        """What the user should know of the recording: one line each."""
        notes = [self._shortened] if self._shortened is not None else []
        if self._refusal is not None:
            notes = [self._refusal]
        elif self._profiler is not None:
            steps, recorded = self._tracker.steps, self._profiler.recorded_steps
            foreign = self._profiler.foreign_profiler
            refused = self._budget.refused if self._budget is not None else 0
            # What the budget did not allow is no fault of the fit.
            if refused:
                notes.append(f"max_overhead is used up: {refused} further windows of the profiler were left out.")
            else:
                notes += recording_notes(self._schedule, steps, recorded, foreign_profiler=foreign)
        if self._captures is not None and self._captures.full:
            notes.append("Captures take max_bytes of the disk: further ones were left out.")
        return [*notes, *self.faults.messages]

    def batch_begins(self, batch: Any) -> None:
        """A batch is about to be trained on."""
        self._observe(self._begin_batch, batch)

    def batch_ends(self, *, automatic: bool) -> None:
        """A batch has been trained on."""
        self._observe(self._end_batch, automatic)

    def backward_begins(self) -> None:
        """Backward begins."""
        self._observe(self._tracker.backward_begins)

    def backward_ends(self) -> None:
        """Backward has ended."""
        self._observe(self._tracker.backward_ends)

    def optimizer_begins(self) -> None:
        """An optimizer is about to step."""
        self._observe(self._tracker.optimizer_begins)

    def ends(self) -> None:
        """Training has ended, or failed: close what is open, save what there is, give the Trainer its profiler back."""
        self._remove_taps()
        self._observe(self._finish)
        self._observing = False

    def _remove_taps(self) -> None:
        self._tap.remove()
        self._optimizer_tap.remove()
        if self._profiler is not None:
            self._profiler.close()
        if self._captures is not None:
            self._captures.close()

    def _is_profiling(self) -> bool:
        return self._profiler is not None and self._profiler.active

    def _window_ends(self, window: RecordedWindow) -> None:
        if self._budget is not None:
            self._budget.window_ends(window.pause_ns + window.export_ns)
        if self._captures is not None and window.capture:
            self._captures.window_ends(window.trace_bytes)
        if self._windows_path is None:
            return
        try:
            with self._windows_path.open("ab") as file:
                file.write(encode_window(window))
        except OSError as error:
            self._windows_path = None
            self.faults.report("what the profiler cost is no longer saved", error)

    def _begin_batch(self, batch: Any) -> None:
        self._tracker.batch_begins()
        self._timer.batch(batch)

    def _end_batch(self, automatic: bool) -> None:
        self._tracker.batch_ends(automatic=automatic)

    def _finish(self) -> None:
        self._tracker.ends()
        if self._profiler is not None:
            self._profiler.training_pauses()
        self._timer.finish()
        self._log.write()

    def _observe(self, function: Callable[..., None], *args: Any) -> None:
        if not self._observing:
            return
        try:
            function(*args)
        except Exception as error:
            self._observing = False
            self._remove_taps()
            self.faults.report("profiling is off for the rest of this fit", error)
            self._give_up()

    def _give_up(self) -> None:
        try:
            if self._profiler is not None:
                self._profiler.abandon()
            self._log.write()
        except Exception as error:
            self.faults.report("what was measured so far may be incomplete", error)


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
