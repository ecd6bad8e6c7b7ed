"""One fit under observation: creates and connects everything that follows its steps."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.account.totals import FitTotals
from lightning_perf.callbacks.compilation.monitor import CompileMonitor
from lightning_perf.callbacks.recording.captures import Captures, OverheadBudget
from lightning_perf.callbacks.recording.memory_watch import MemoryWatch
from lightning_perf.callbacks.recording.profiler import WindowProfiler
from lightning_perf.callbacks.recording.recording_plan import Recording
from lightning_perf.callbacks.recording.schedule import WindowPlan, fit_schedule
from lightning_perf.callbacks.recording.tensor_lists import WindowLists
from lightning_perf.callbacks.recording.window_notes import WindowNotes
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.callbacks.steps.fit_state import FitContext, Signal, TrainingLoop
from lightning_perf.callbacks.steps.hang_watch import HangWatch
from lightning_perf.callbacks.steps.lightning_hooks import HookTimes, OptimizerHooks, ProfilerHooks
from lightning_perf.callbacks.steps.observers import FitObserver, Observers
from lightning_perf.callbacks.steps.step_log import StepLog
from lightning_perf.callbacks.steps.step_timer import StepTimer, cuda_clock
from lightning_perf.callbacks.steps.step_tracker import StepTracker
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.run_files.run_record import study_folder, study_place
from lightning_perf.run_files.steps import StepSample


class Fit:
    """The steps of one fit of a Trainer, or of one training of a loop without a Trainer.

    It adds all that follows steps and phases to the observers.
    """

    def __init__(
        self,
        context: FitContext,
        recording: Recording,
        observers: Observers,
        trainer_log: TrainerLog | None = None,
        accounts: Sequence[FitAccountant] = (),
    ) -> None:
        self.began_s = time.perf_counter()
        self.loop = loop = context.loop
        self.folder = folder = context.folder
        self.errors = errors = context.errors
        self.trainer_log = trainer_log or TrainerLog(None, errors)
        self._observers = observers
        self._state = state = context.state
        schedule, shortened = fit_schedule(recording.schedule, recording.open_fields, loop.expected_steps)
        refusal = _refusal(loop, folder, recording.ranks)
        self._notes = [each for each in (refusal or shortened,) if each is not None]
        self._log = StepLog(context, self.trainer_log)
        self._profilers: list[WindowProfiler] = []
        recorders: list[FitObserver] = []
        hook_times: HookTimes | None = None
        core_use = CoreUse(state)
        if refusal is None and folder is not None:
            hook_times = loop.hook_times
            plan = WindowPlan(schedule, folder)
            loader: dict[str, Any] = {}
            with errors.instead("the settings of the data loader are not recorded"):
                loader = loop.loader_facts()
            container = str(loader.get("container") or "")
            core_use = CoreUse(state, loader.get("workers") or 0, container, iterators=loop.loader_iterators)
            budgets = [OverheadBudget(recording.max_overhead)] if recording.max_overhead is not None else []
            lists = WindowLists(loop.tensor_source, observers) if recording.profile_memory else None
            notes = WindowNotes(context, core_use, loader, lists)
            self._profilers = [
                WindowProfiler(
                    context,
                    plan,
                    recording,
                    notes,
                    on_window=observers.on_window,
                    may_begin=lambda: all(budget.allows() for budget in budgets),
                )
            ]
            captures = [Captures(recording.captures, context, folder, plan)] if recording.captures is not None else []
            recorders = [*self._profilers, *captures, *budgets, core_use]
        # On a GPU the host runs ahead, so that its phases say nothing about the waits of the device.
        compared = accounts if loop.device.type == "cpu" and loop.world_size > 1 else ()
        self._timer = StepTimer(
            state,
            on_sample=observers.on_sample,
            device_clock=cuda_clock(loop.device) if loop.device.type == "cuda" else None,
            phases_ns=next((account.step_phases_ns for account in compared), None),
        )
        compilations = CompileMonitor(context, since_ns=next((account.began_ns for account in accounts), None))
        watched = folder is not None and study_folder() is None
        # The order matters. At the start of a step the profiler decides first whether it runs, and the others read that
        # from the state; the timer starts last. At the end of a step the order is reversed: the timer stops first, then
        # the window closes, and files are written last. So none of this work is timed or recorded.
        self._followers: list[FitObserver] = [
            *([hook_times] if hook_times is not None else []),
            _Taps(loop, observers, accounts, hook_times),
            *(FitTotals(state, account) for account in accounts),
            self._log,
            *recorders,
            compilations,
            *([MemoryWatch(context, worker=core_use.worker_growth)] if watched else []),
            *([HangWatch(recording.hang_after, context, self._progress)] if recording.hang_after is not None else []),
            self._timer,
        ]
        counts_all = loop.profiler is not None and loop.automatic
        self.tracker = StepTracker(state, loop, observers, self._followers, counts_all=counts_all)
        observers.add(*self._followers, self.tracker)

    def add_step(self, step_ns: int) -> None:
        """Count a step that ended before the observation started, and was timed by the host."""
        self._observers.on_sample(StepSample(self._state.whole_steps, step_ns, 0, None, None, False))
        self._state.whole_steps += 1

    def unsaved_samples(self) -> tuple[StepSample, ...]:
        """Return the step times of this rank that could not be saved to a file."""
        return self._log.unsaved()

    @property
    def whole_steps(self) -> int:
        """Whole steps so far."""
        return self._state.whole_steps

    @property
    def is_empty(self) -> bool:
        """Whether the fit has neither a whole step nor a trace."""
        return not self._state.whole_steps and not self.has_trace

    @property
    def has_trace(self) -> bool:
        """Whether this rank has written a trace."""
        return any(profiler.files for profiler in self._profilers)

    def notes(self) -> list[str]:
        """Return notes on the recording for the user, one line each."""
        return [*self._notes, *(note for each in self._followers for note in each.notes()), *self.errors.messages]

    def _progress(self) -> tuple[int, ...]:
        return self._state.whole_steps, self.tracker.batches, self.loop.validation_batches()


class _Taps(FitObserver):
    """The hooks through which the Trainer's profiler and torch's optimizers call the observers."""

    def __init__(
        self, loop: TrainingLoop, observers: Observers, accounts: Sequence[FitAccountant], times: HookTimes | None
    ) -> None:
        self._observers = observers
        self._profiler_hooks = [account.hooks for account in accounts]
        self._own_hooks: list[ProfilerHooks] = []
        self._optimizer_hooks: list[OptimizerHooks] = []
        if loop.profiler is not None and not accounts:
            self._profiler_hooks = self._own_hooks = [ProfilerHooks(loop.profiler)]
        for hooks in self._profiler_hooks:
            hooks.listen(observers.on_action_start, observers.on_action_end, times)
        observers.on_change.append(self._follow_optimizers)

    def follow_phases(self, follow: bool) -> None:
        for hooks in self._profiler_hooks:
            hooks.follow_phases(follow)
        self._observers.refresh()

    def close(self) -> None:
        """Give the Trainer its own profiler back."""
        if self._follow_optimizers in self._observers.on_change:
            self._observers.on_change.remove(self._follow_optimizers)
        for optimizer_hooks in self._optimizer_hooks:
            optimizer_hooks.remove()
        for profiler_hooks in self._profiler_hooks:
            profiler_hooks.stop_listening()
        for profiler_hooks in self._own_hooks:
            profiler_hooks.remove()

    def _follow_optimizers(self) -> None:
        """Listen to torch's optimizers as long as somebody has to."""
        wanted = bool(self._observers.on_optimizer_step_start.calls or self._observers.on_optimizer_step_end.calls)
        if wanted and not self._optimizer_hooks:
            hooks = OptimizerHooks(on_start=self._step_starts, on_end=self._observers.on_optimizer_step_end)
            self._optimizer_hooks = [hooks]
        elif self._optimizer_hooks and not wanted and self._optimizer_hooks[0].remove():
            self._optimizer_hooks.pop()

    def _step_starts(self) -> None:
        self._observers.on_optimizer_step_start()
        if not self._profiler_hooks:  # without a Trainer, nothing announces the optimizer's part before its step
            self._observers.on_action_end(Signal.FORWARD)
            self._observers.on_before_optimizer_step(None)


def _refusal(loop: TrainingLoop, folder: Path | None, ranks: Collection[int] | None) -> str | None:
    if folder is None:
        return "No step was recorded: there is no folder to write traces to."
    place = study_place()
    # The warm-up of a study is not timed, so it can be profiled. Its report predicts the gain that the study measures.
    if study_folder() is not None and (place is None or place.block != 0):
        return "No step was recorded: the run is part of a study, and timed runs are not profiled."
    if loop.obstacle is None and ranks is not None and loop.rank not in ranks:
        return f"Rank {loop.rank} recorded no step: {loop.name}(ranks=…) does not list it."
    return loop.obstacle
