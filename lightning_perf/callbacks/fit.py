"""One fit under observation: the tap, the tracker and what follows them, from its first step to its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from lightning_perf.analysis.step_times import StepSample
from lightning_perf.callbacks.device_clock import DeviceClock, TimingEvent
from lightning_perf.callbacks.faults import Faults
from lightning_perf.callbacks.host import Trainer
from lightning_perf.callbacks.phases import Signal
from lightning_perf.callbacks.profiler import RecordingOptions, WindowProfiler
from lightning_perf.callbacks.recorder import study_folder
from lightning_perf.callbacks.schedule import Schedule
from lightning_perf.callbacks.step_log import StepLog
from lightning_perf.callbacks.step_timer import StepTimer
from lightning_perf.callbacks.step_tracker import StepObserver, StepTracker
from lightning_perf.callbacks.taps import OptimizerTap, ProfilerTap

__all__ = ["Fit", "expected_steps", "recording_notes"]


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
    ) -> None:
        self.folder = folder
        self.faults = faults
        self._schedule, self._shortened = fit_schedule(schedule, chosen, expected_steps(trainer))
        self._refusal = _refusal(trainer, folder)
        rank = int(trainer.global_rank)
        # The step axis of the Trainer's own logs; a resumed fit goes on where the checkpoint was saved.
        first_step = int(getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step))
        device_type = trainer.strategy.root_device.type
        self._profiler = None
        if self._refusal is None and folder is not None:
            self._profiler = WindowProfiler(
                schedule=self._schedule,
                options=options,
                device_type=device_type,
                first_step=first_step,
                rank=rank,
                folder=folder,
                faults=faults,
            )
        self._log = StepLog(
            first_step=first_step,
            path=folder / f"steps.rank{rank}.jsonl" if folder is not None else None,
            send=_logger_sender(trainer),
            log_every=int(trainer.log_every_n_steps),
            faults=faults,
        )
        self._timer = StepTimer(
            first_step=first_step,
            sink=self._log,
            is_profiling=lambda: self._profiler is not None and self._profiler.active,
            device_clock=DeviceClock(_cuda_event) if device_type == "cuda" else None,
        )
        # At the end of a step they are told in reverse: the clock stops, the window closes, and then files are written.
        observers: list[StepObserver] = [self._log, self._timer]
        if self._profiler is not None:
            observers.insert(1, self._profiler)
        self._tracker = StepTracker(lambda: int(trainer.global_step), *observers)
        self._observing = True
        self._tap = ProfilerTap(trainer.profiler, on_start=self._on_start, on_stop=self._on_stop)
        self._optimizer_tap = OptimizerTap(
            on_enter=lambda: self._observe(self._tracker.optimizer_enters),
            on_leave=lambda: self._observe(self._tracker.optimizer_leaves),
        )

    def samples(self) -> tuple[StepSample, ...]:
        """The step times of this rank."""
        return self._log.samples()

    def notes(self) -> list[str]:
        """What the user should know of the recording: one line each."""
        notes = [self._shortened] if self._shortened is not None else []
        if self._refusal is not None:
            notes = [self._refusal]
        elif self._profiler is not None:
            steps, recorded = self._tracker.steps, self._profiler.recorded_steps
            foreign = self._profiler.foreign_profiler
            notes += recording_notes(self._schedule, steps, recorded, foreign_profiler=foreign)
        return [*notes, *self.faults.messages]

    def batch_begins(self, batch: Any) -> None:
        """A batch is about to be trained on."""
        self._observe(self._begin_batch, batch)

    def batch_ends(self, *, automatic: bool) -> None:
        """A batch has been trained on."""
        self._observe(self._tracker.batch_ends, automatic=automatic)

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

    def _begin_batch(self, batch: Any) -> None:
        self._tracker.batch_begins()
        self._timer.batch(batch)

    def _finish(self) -> None:
        self._tracker.ends()
        if self._profiler is not None:
            self._profiler.training_pauses()
        self._timer.finish()
        self._log.write()

    def _on_start(self, signal: Signal) -> None:
        self._observe(self._tracker.starts, signal)

    def _on_stop(self, signal: Signal) -> None:
        self._observe(self._tracker.stops, signal)

    def _observe(self, function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not self._observing:
            return
        try:
            function(*args, **kwargs)
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


def expected_steps(trainer: Trainer) -> int | None:
    """Estimate the whole steps that a fit still has before it; None when that is open.

    Args:
        trainer: The Trainer, at the start of training.
    """
    limits = []
    batches = trainer.num_training_batches
    if trainer.max_epochs is not None and trainer.max_epochs != -1 and batches != math.inf:
        epochs = max(trainer.max_epochs - trainer.current_epoch, 0)
        limits.append(epochs * math.ceil(batches / trainer.accumulate_grad_batches))
    if trainer.max_steps != -1:
        # The Trainer counts each optimizer's steps; in manual optimization one of ours usually holds one of each.
        optimizers = 1 if trainer.lightning_module.automatic_optimization else max(len(trainer.optimizers), 1)
        limits.append(math.ceil(max(trainer.max_steps - trainer.global_step, 0) / optimizers))
    return min(limits, default=None)


def fit_schedule(schedule: Schedule, chosen: Collection[str], steps: int | None) -> tuple[Schedule, str | None]:
    """Shorten a schedule for a fit that is too short for it.

    Args:
        schedule: The schedule.
        chosen: Its fields that may be shortened.
        steps: Steps of the fit, None when unknown.

    Returns:
        The schedule to use, and a line that says what was shortened.

    Example:
        >>> fit_schedule(Schedule(), {"skip_first", "warmup"}, 7)[1]
        'The fit has 7 steps: skip_first=0 instead of 10, warmup=2 instead of 3.'
    """
    if steps is None:
        return schedule, None
    names = ("skip_first", "wait", "warmup")
    shorter = schedule.shortened(steps, **{name: name in chosen for name in names})
    changes = [
        f"{name}={getattr(shorter, name)} instead of {getattr(schedule, name)}"
        for name in names
        if getattr(shorter, name) != getattr(schedule, name)
    ]
    return shorter, f"The fit has {_count(steps)}: {', '.join(changes)}." if changes else None


def recording_notes(schedule: Schedule, steps: int, recorded: int, *, foreign_profiler: bool = False) -> list[str]:
    """Say in a line what of the schedule was not recorded, and why.

    Args:
        schedule: The schedule that was in force.
        steps: Whole steps of the fit.
        recorded: Whole steps recorded.
        foreign_profiler: Whether another profiler was in the way.

    Returns:
        No line when everything was recorded.

    Example:
        >>> recording_notes(Schedule(skip_first=0, warmup=1, active=3), steps=3, recorded=2)
        ['Recorded 2 of 3 steps: training ended after 3 steps, the schedule needs 4.']
    """
    planned = schedule.active * (schedule.repeat or 1)
    if recorded >= planned:
        return []
    if foreign_profiler:
        why = "another torch.profiler was recording, and two at a time empty each other"
    elif schedule.recorded_within(steps) > recorded:
        why = "validation or the end of an epoch came in the middle of a step, or its trace was lost"
    else:
        needed = schedule.skip_first + schedule.cycle * (schedule.repeat or 1)
        why = f"training ended after {_count(steps)}, the schedule needs {needed}"
    return [f"Recorded {recorded} of {_count(planned)}: {why}."]


def _count(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


def _refusal(trainer: Trainer, folder: Path | None) -> str | None:
    if folder is None:
        return "No step was recorded: there is no folder to write traces to."
    if study_folder() is not None:
        return "No step was recorded: the run is part of a study, and timed runs are not profiled."
    # By name: either package has a class of its own.
    if any(base.__name__ == "PyTorchProfiler" for base in type(trainer.profiler).__mro__):
        return (
            "No step was recorded: the Trainer's own PyTorchProfiler records already, and two at a time crash. "
            'Leave out Trainer(profiler="pytorch") to have this report.'
        )
    return None


def _cuda_event() -> TimingEvent:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _logger_sender(trainer: Trainer) -> Callable[[dict[str, float], int], None] | None:
    if not trainer.is_global_zero or not trainer.loggers:
        return None

    def send(metrics: dict[str, float], step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)

    return send
