"""One fit under observation: creates and connects everything that follows its steps."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.account.garbage_watch import GarbageWatch
from lightning_perf.callbacks.compilation.monitor import CompileMonitor
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.captures import Captures
from lightning_perf.callbacks.recording.memory_watch import MemoryWatch
from lightning_perf.callbacks.recording.profiler import WindowProfiler
from lightning_perf.callbacks.recording.recording_plan import OverheadBudget, Recording
from lightning_perf.callbacks.recording.schedule import WindowPlan, fit_schedule, recording_notes
from lightning_perf.callbacks.recording.tensor_lists import WindowLists
from lightning_perf.callbacks.recording.window_notes import WindowNotes
from lightning_perf.callbacks.steps.core_use import CoreUse, core_wait_ns
from lightning_perf.callbacks.steps.fit_state import FitContext, FitState, Signal, StepObserver, TrainingLoop
from lightning_perf.callbacks.steps.hang_watch import HangWatch
from lightning_perf.callbacks.steps.lightning_hooks import HookTimes, OptimizerHooks, ProfilerHooks
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.callbacks.steps.step_log import StepLog
from lightning_perf.callbacks.steps.step_timer import StepTimer, cuda_clock
from lightning_perf.callbacks.steps.step_tracker import StepTracker
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.run_files.captures import WINDOWS, RecordedWindow
from lightning_perf.run_files.fit.compilations import COMPILATIONS
from lightning_perf.run_files.run_record import study_folder, study_place
from lightning_perf.run_files.steps import StepSample


class Fit:
    """The steps of one fit of a Trainer, or of one training of a loop without a Trainer.

    It adds a step tracker to the observers, as the last one. The tracker calls everything that follows steps and
    phases. If any of that fails, the tracker is dropped.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        *,
        recording: Recording,
        folder: Path | None,
        observers: Observers,
        errors: ErrorReporter,
        state: FitState | None = None,
        trainer_log: TrainerLog | None = None,
        accounts: Sequence[FitAccountant] = (),
    ) -> None:
        self.folder = folder
        self.errors = errors
        context = FitContext(loop, folder, errors) if state is None else FitContext(loop, folder, errors, state)
        self._state = state = context.state
        self._schedule, self._shortened = fit_schedule(recording.schedule, recording.open_fields, loop.expected_steps)
        self._refusal = _refusal(loop, folder, recording.ranks)
        self._profilers: list[WindowProfiler] = []
        self._budgets: list[OverheadBudget] = []
        self._captures: list[Captures] = []
        hook_times: HookTimes | None = None
        core_use: list[CoreUse] = []
        memory: list[MemoryWatch] = []
        if self._refusal is None and folder is not None:
            plan = WindowPlan(self._schedule, folder)
            hook_times = loop.hook_times
            loader: dict[str, Any] = {}
            with errors.instead("the settings of the data loader are not recorded"):
                loader = loop.loader_facts()
            container = str(loader.get("container") or "")
            core_use = [CoreUse(state, loader.get("workers") or 0, container, iterators=loop.loader_iterators)]
            if recording.max_overhead is not None:
                self._budgets = [OverheadBudget(recording.max_overhead)]
            if recording.captures is not None:
                self._captures = [Captures(recording.captures, context, folder, plan)]
            lists = WindowLists(loop.tensor_source, observers) if recording.profile_memory else None
            notes = WindowNotes(context, core_use[0], loader, lists)
            budget = next(iter(self._budgets), None)
            self._profilers = [
                WindowProfiler(context, plan, recording, notes, on_window=self._on_window, budget=budget)
            ]
        if folder is not None and study_folder() is None:
            memory = [MemoryWatch(context, worker=core_use[0].worker_growth if core_use else lambda: None)]
        self._windows = context.writer(WINDOWS, "the cost of the profiler is no longer saved")
        self._log = StepLog(context, trainer_log or TrainerLog(None, errors))
        totals = [_Totals(state, account) for account in accounts]
        self._sample_takers = (
            self._log.add,
            *(each.add for each in totals),
            *(each.add for each in self._captures),
            *(each.add for each in self._budgets),
        )
        # On a GPU the host runs ahead, so that its phases say nothing about the waits of the device.
        device = loop.device
        compared = accounts if device.type == "cpu" and loop.world_size > 1 else ()
        timer = StepTimer(
            state,
            on_sample=self._on_sample,
            device_clock=cuda_clock(device) if device.type == "cuda" else None,
            phases_ns=next((account.step_phases_ns for account in compared), None),
        )
        compilations = CompileMonitor(
            state,
            path=context.path(COMPILATIONS),
            model=loop.model,
            errors=errors,
            since_ns=next((account.began_ns for account in accounts), None),
        )
        watches: list[HangWatch] = []
        if recording.hang_after is not None:
            watches = [HangWatch(recording.hang_after, context, functools.partial(self._progress, loop))]
        taps = _Taps(loop, observers, accounts, hook_times)
        # The order matters. At the start of a step the profiler decides first whether it runs, and the others read that
        # from the state; the timer starts last. At the end of a step the order is reversed: the timer stops first, then
        # the window closes, and files are written last. So none of this work is timed or recorded.
        self.tracker = StepTracker(
            state,
            loop,
            [
                taps,
                *totals,
                self._log,
                *self._profilers,
                *self._captures,
                compilations,
                *memory,
                *core_use,
                *watches,
                timer,
            ],
            counts_all=loop.profiler is not None and loop.automatic,
            on_follow=taps.follow_phases,
        )
        if hook_times is not None:
            observers.add(hook_times)
        observers.add(self.tracker)
        for each in totals:
            each.garbage.start()  # here and not earlier: from here on, the tracker closes it
        with errors.instead("hangs are not watched"):
            for watch in watches:
                watch.start()
        for captures in self._captures:
            with observers.isolate(self.tracker):
                captures.listen()  # last: if something above fails, nothing would restore the signal handler

    def add_step(self, step_ns: int) -> None:
        """Count a step that ended before the observation started, and was timed by the host."""
        self._on_sample(StepSample(self._state.whole_steps, step_ns, 0, None, None, False))
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
        notes = [each for each in (self._refusal or self._shortened,) if each is not None]
        refused = sum(budget.refused for budget in self._budgets)
        if refused:  # no other reason is needed
            notes.append(f"max_overhead is used up: {refused} further windows of the profiler were left out.")
        else:
            for profiler in self._profilers:
                notes += recording_notes(
                    self._schedule,
                    self._state.whole_steps,
                    profiler.recorded_steps,
                    foreign_profiler=profiler.foreign_profiler,
                )
        if any(captures.full for captures in self._captures):
            notes.append("Captures take max_bytes of the disk: further ones were left out.")
        return [*notes, *self.errors.messages]

    def _progress(self, loop: TrainingLoop) -> tuple[int, ...]:
        return self._state.whole_steps, self.tracker.batches, loop.validation_batches()

    def _on_sample(self, sample: StepSample) -> None:
        for take in self._sample_takers:
            take(sample)

    def _on_window(self, window: RecordedWindow) -> None:
        for budget in self._budgets:
            budget.window_ends(window.pause_ns + window.export_ns)
        for captures in self._captures if window.capture else ():
            captures.window_ends(window.trace_bytes)
        self._windows.append(window)


MARKED_STEPS = 16
"""Steps after which the account keeps the times until then for the first time, and then each time they have doubled."""


class _Totals(StepObserver):
    """The samples, tokens and garbage collections of the fit, and the time of its first half, for its account."""

    def __init__(self, state: FitState, account: FitAccountant) -> None:
        self._state = state
        self._account = account
        self.garbage = GarbageWatch(state)
        self._samples: int | None = 0
        self._tokens: int | None = 0
        self._next_mark = MARKED_STEPS
        self._waited_ns = core_wait_ns()

    def add(self, sample: StepSample) -> None:
        """Count the sample of a step; the totals are unknown from the first step without a count on."""
        self._samples = None if self._samples is None or sample.samples is None else self._samples + sample.samples
        self._tokens = None if self._tokens is None or sample.tokens is None else self._tokens + sample.tokens
        if self._state.whole_steps >= self._next_mark:
            self._next_mark = 2 * self._state.whole_steps
            self._account.mark_steps(self._state.whole_steps)

    def finish(self) -> None:
        if self._state.whole_steps:
            account = self._account
            account.steps, account.samples, account.tokens = self._state.whole_steps, self._samples, self._tokens
            account.collections = self.garbage.totals()
            waited_ns = core_wait_ns()
            if waited_ns is not None and self._waited_ns is not None:
                account.core_wait_ns = max(0, waited_ns - self._waited_ns)

    def close(self) -> None:
        """Stop to watch the garbage collector."""
        self.garbage.close()


class _Taps(StepObserver):
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
        """Follow all phases of a step, or fetches and checkpoints only."""
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
