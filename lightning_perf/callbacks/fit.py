"""One fit under observation: creates and connects everything that follows it, from the first step to the end."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.compilation.monitor import CompileMonitor
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.batch_contents import BatchContents
from lightning_perf.callbacks.recording.captures import Captures
from lightning_perf.callbacks.recording.memory_watch import MemoryWatch
from lightning_perf.callbacks.recording.overhead_budget import OverheadBudget
from lightning_perf.callbacks.recording.profiler import WindowProfiler
from lightning_perf.callbacks.recording.recording_plan import RecordingPlan
from lightning_perf.callbacks.recording.schedule import (
    WindowPlan,
    fit_schedule,
    recording_notes,
)
from lightning_perf.callbacks.recording.tensor_lists import WindowLists
from lightning_perf.callbacks.recording.tokens import TokenCounter
from lightning_perf.callbacks.recording.window_notes import WindowNotes
from lightning_perf.callbacks.steps.core_waits import CoreWaits
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.hook_times import HookTimes
from lightning_perf.callbacks.steps.lightning_hooks import OptimizerHooks, ProfilerHooks, Signal
from lightning_perf.callbacks.steps.page_fault_counter import PageFaultCounter
from lightning_perf.callbacks.steps.step_log import StepLog
from lightning_perf.callbacks.steps.step_timer import StepTimer, cuda_clock
from lightning_perf.callbacks.steps.step_tracker import StepTracker
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.callbacks.training_loop import TrainingLoop
from lightning_perf.run_files.captures import WINDOWS, RecordedWindow
from lightning_perf.run_files.fit.compilations import COMPILATIONS
from lightning_perf.run_files.jsonl import LogWriter
from lightning_perf.run_files.run_record import study_folder, study_place
from lightning_perf.run_files.steps import STEPS, StepSample

__all__ = ["Fit"]

T = TypeVar("T")


class Fit:
    """Observes one fit of a Trainer, or one training of a loop without a Trainer.

    A failure in here is reported once and ends the observation, but not the training.

    Args:
        loop: The training loop, at the start of training.
        plan: Which steps are recorded, with which details and by which ranks.
        folder: Where files go; None to write none.
        errors: Where errors are reported.
        trainer_log: Where step times are logged; None to log none.
        account: Keeps the account of the fit; None to keep none.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        *,
        plan: RecordingPlan,
        folder: Path | None,
        errors: ErrorReporter,
        trainer_log: TrainerLog | None = None,
        account: FitAccountant | None = None,
    ) -> None:
        self.folder = folder
        self._account = account
        self._samples: int | None = 0
        self._tokens: int | None = 0
        self.errors = errors
        self._schedule, self._shortened = fit_schedule(plan.schedule, plan.open_fields, loop.expected_steps())
        self._refusal = _refusal(loop, folder, plan.ranks)
        rank, device = loop.rank, loop.device
        self._state = state = FitState()
        self._profiler: WindowProfiler | None = None
        self._captures: Captures | None = None
        self._budget: OverheadBudget | None = None
        self._token_counter: TokenCounter | None = None
        self._batch_contents = BatchContents(state)
        page_faults: PageFaultCounter | None = None
        core_waits: CoreWaits | None = None
        hook_times: HookTimes | None = None
        windows_path = WINDOWS.path(folder, rank) if folder is not None else None
        self._windows = LogWriter(WINDOWS, windows_path, errors.report, "the cost of the profiler is no longer saved")
        if self._refusal is None and folder is not None:
            windows = WindowPlan(self._schedule, folder)
            core_waits = CoreWaits(state)
            hook_times = loop.hook_times()
            self._token_counter = TokenCounter(state, functools.partial(_product_parameters, loop, errors))
            if device.type == "cpu":
                page_faults = PageFaultCounter(state)
            if plan.max_overhead is not None:
                self._budget = OverheadBudget(plan.max_overhead, state)
            self._profiler = WindowProfiler(
                state,
                plan=windows,
                options=plan.details,
                device_type=device.type,
                rank=rank,
                errors=errors,
                notes=WindowNotes(
                    errors,
                    page_faults=page_faults,
                    core_waits=core_waits,
                    loader=_loader_facts(loop, errors),
                    hook_times=hook_times,
                    tensors=WindowLists(loop.tensor_source) if plan.details.profile_memory else None,
                    tokens=self._token_counter,
                    batch=self._batch_contents,
                ),
                on_window=self._on_window,
                budget=self._budget,
            )
            if plan.captures is not None:
                self._captures = Captures(
                    plan.captures,
                    state,
                    plan=windows,
                    rank=rank,
                    world_size=loop.world_size,
                    folder=folder,
                    errors=errors,
                    timed_by_device=device.type == "cuda",
                )
        self._log = StepLog(
            state,
            path=STEPS.path(folder, rank) if folder is not None else None,
            trainer_log=trainer_log,
            log_every=loop.log_every,
            errors=errors,
        )
        self._memory: MemoryWatch | None = None
        if folder is not None and study_folder() is None:
            self._memory = MemoryWatch(state, device=device, folder=folder, rank=rank)
        self._timer = StepTimer(
            state,
            on_sample=self._on_sample,
            device_clock=cuda_clock(device) if device.type == "cuda" else None,
        )
        self._compilations = CompileMonitor(
            state,
            path=COMPILATIONS.path(folder, rank) if folder is not None else None,
            model=loop.model,
            errors=errors,
            since_ns=account.began_ns if account is not None else None,
        )
        # The order of calls matters. At the start of a step the profiler decides first whether it runs, and the others
        # read that from the state; the timer starts last. At the end the timer stops first, then the window closes, and
        # files are written last. So none of this work is timed or recorded.
        self._tracker = StepTracker(
            state,
            loop.counter,
            at_start=_present(
                self._profiler,
                self._captures,
                self._budget,
                page_faults,
                self._compilations,
                core_waits,
                self._token_counter,
                self._timer,
            ),
            at_end=_present(
                self._timer,
                self._token_counter,
                self._memory,
                page_faults,
                self._compilations,
                self._budget,
                self._captures,
                self._profiler,
                self._log,
            ),
            phases=_present(self._profiler, self._timer),
        )
        self._observing = True
        self._hook_times = hook_times
        if account is not None:
            account.detach()  # two layers of hooks would cost twice
        self._profiler_hooks: ProfilerHooks | None = None
        if loop.profiler is not None:
            self._profiler_hooks = ProfilerHooks(
                loop.profiler,
                on_start=self._tracker.on_action_start,
                on_stop=self._tracker.on_action_end,
                on_error=self._give_up,
                times=hook_times,
                account=account,
            )
        self._optimizer_hooks = OptimizerHooks(
            on_start=self._on_optimizer_step_start,
            on_end=self._on_optimizer_step_end,
            on_error=self._give_up,
        )
        if self._captures is not None:
            try:
                self._captures.listen()  # last: if something above fails, nothing would restore the signal handler
            except Exception as error:
                self._give_up(error)

    def _on_sample(self, sample: StepSample) -> None:
        self._log.add(sample)
        if self._samples is not None:
            self._samples = None if sample.samples is None else self._samples + sample.samples
        if self._tokens is not None:
            self._tokens = None if sample.tokens is None else self._tokens + sample.tokens
        if self._captures is not None:
            self._captures.add(sample)

    def unsaved_samples(self) -> tuple[StepSample, ...]:
        """Return the step times of this rank that could not be saved to a file."""
        return self._log.unsaved()

    @property
    def whole_steps(self) -> int:
        """Whole steps so far."""
        return self._state.whole_steps

    @property
    def optimizer_stepped(self) -> bool:
        """Whether an optimizer has stepped in the open step."""
        return self._tracker.optimizer_stepped

    @property
    def is_empty(self) -> bool:
        """Whether the fit has neither a whole step nor a trace."""
        return not self._state.whole_steps and not (self._profiler is not None and self._profiler.files)

    @property
    def profiling(self) -> bool:
        """Whether the profiler warms up or records now."""
        return self._state.profiling

    @property
    def has_trace(self) -> bool:
        """Whether this rank has written a trace."""
        return self._profiler is not None and bool(self._profiler.files)

    def notes(self) -> list[str]:
        """Return notes on the recording for the user, one line each."""
        notes = [self._shortened] if self._shortened is not None else []
        if self._refusal is not None:
            notes = [self._refusal]
        elif self._profiler is not None:
            steps, recorded = self._state.whole_steps, self._profiler.recorded_steps
            foreign = self._profiler.foreign_profiler
            refused = self._budget.refused if self._budget is not None else 0
            # If the budget left windows out, no other reason is needed.
            if refused:
                notes.append(f"max_overhead is used up: {refused} further windows of the profiler were left out.")
            else:
                notes += recording_notes(self._schedule, steps, recorded, foreign_profiler=foreign)
        if self._captures is not None and self._captures.full:
            notes.append("Captures take max_bytes of the disk: further ones were left out.")
        return [*notes, *self.errors.messages]

    # Each hook has its own try: a shared wrapper would add a call, and so time, to every step.

    def on_batch_start(self, batch: Any) -> None:
        """Training on a batch starts."""
        if self._observing:
            try:
                self._tracker.on_batch_start()
                self._timer.count_samples(batch)
                if self._token_counter is not None:
                    self._token_counter.add_batch(batch)
                self._batch_contents.add_batch(batch)
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

    # The hooks of a loop without a Trainer, which has no profiler that announces its actions.

    def on_action_start(self, signal: Signal) -> None:
        """The loop starts an action."""
        if self._observing:
            try:
                self._tracker.on_action_start(signal)
            except Exception as error:
                self._give_up(error)

    def on_action_end(self, signal: Signal) -> None:
        """The loop has ended an action."""
        if self._observing:
            try:
                self._tracker.on_action_end(signal)
            except Exception as error:
                self._give_up(error)

    def on_optimizer_end(self) -> None:
        """An optimizer has stepped, or a gradient scaler has skipped its step."""
        if self._observing:
            try:
                self._tracker.on_action_end(Signal.MANUAL_STEP)
                self._tracker.on_optimizer_step_end()
            except Exception as error:
                self._give_up(error)

    def add_step(self, step_ns: int) -> None:
        """Count a step that ended before the observation started, and was timed by the host."""
        if self._observing:
            try:
                self._on_sample(StepSample(self._state.whole_steps, step_ns, 0, None, None, False))
                self._state.whole_steps += 1
            except Exception as error:
                self._give_up(error)

    def finish(self, *, may_wait: bool = True) -> None:
        """End the observation: save all data, and give the Trainer its own profiler back.

        Args:
            may_wait: Whether to wait for the device. After an exception it may itself wait for a rank that is gone.
        """
        if self._profiler is not None and not may_wait:
            self._profiler.stop_waiting()
        self._remove_hooks()
        if self._observing:
            try:
                self._tracker.finish()
                if self._profiler is not None:
                    self._profiler.on_training_pause()
                self._timer.finish()
                self._log.write()
                if self._memory is not None:
                    self._memory.save()
            except Exception as error:
                self._give_up(error)
            if self._account is not None and self._state.whole_steps:
                self._account.steps = self._state.whole_steps
                self._account.samples, self._account.tokens = self._samples, self._tokens
        self._observing = False

    def _remove_hooks(self) -> None:
        if self._profiler_hooks is not None:
            self._profiler_hooks.remove()
        if self._account is not None:
            self._account.attach()
        self._optimizer_hooks.remove()
        if self._profiler is not None:
            self._profiler.close()
        if self._captures is not None:
            self._captures.close()
        self._compilations.finish()

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
            self.errors.report("measurements so far may be incomplete", further)

    def _on_optimizer_step_start(self) -> None:
        self._tracker.on_optimizer_step_start()
        if self._profiler_hooks is None:  # without a Trainer, nothing announces the optimizer's part before its step
            self._tracker.on_action_end(Signal.FORWARD)
            self._tracker.on_optimizer_start()

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


def _loader_facts(loop: TrainingLoop, errors: ErrorReporter) -> dict[str, str | int | bool | None]:
    try:
        return loop.loader_facts()
    except Exception as error:  # datasets and samplers may come from anywhere
        errors.report("the settings of the data loader are not recorded", error)
        return {}


def _product_parameters(loop: TrainingLoop, errors: ErrorReporter) -> int | None:
    try:
        return loop.product_parameters()
    except Exception as error:  # a model may be any module
        errors.report("the parameters of the model are not counted", error)
        return None


def _refusal(loop: TrainingLoop, folder: Path | None, ranks: Collection[int] | None) -> str | None:
    if folder is None:
        return "No step was recorded: there is no folder to write traces to."
    place = study_place()
    # The warm-up of a study is not timed, so it can be profiled. Its report predicts the gain that the study measures.
    if study_folder() is not None and (place is None or place.block != 0):
        return "No step was recorded: the run is part of a study, and timed runs are not profiled."
    obstacle = loop.obstacle()
    if obstacle is None and ranks is not None and loop.rank not in ranks:
        return f"Rank {loop.rank} recorded no step: {loop.name}(ranks=…) does not list it."
    return obstacle
