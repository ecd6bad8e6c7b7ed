"""Follows the training loop: turns the Trainer's hooks into whole optimizer steps and their phases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lightning_perf.callbacks.steps.fit_state import FitState, Phase, Signal, TrainingLoop
from lightning_perf.callbacks.steps.observers import FitObserver, Observers

_PHASES = {
    Signal.FETCH: Phase.FETCH,
    Signal.TRANSFER: Phase.TRANSFER,
    Signal.FORWARD: Phase.FORWARD,
    Signal.MANUAL_STEP: Phase.OPTIMIZER,
    Signal.ZERO_GRAD: Phase.OPTIMIZER,
    Signal.CHECKPOINT: Phase.CHECKPOINT,
}


UNSEEN_BATCHES = 64
"""Batches of manual optimization without any optimizer step, after which each batch counts as a step. Accumulation over
more batches than that is rare."""

_ALL = frozenset(Phase)
_ALWAYS = frozenset({Phase.FETCH, Phase.CHECKPOINT})
_PHASE_HOOKS = frozenset({"on_before_backward", "on_after_backward", "on_before_optimizer_step"})
_OPTIMIZER_HOOKS = frozenset({"on_optimizer_step_start", "on_optimizer_step_end"})


class StepTracker(FitObserver):
    """Follows the training loop, and calls the hooks of steps and phases.

    A step starts with the fetch of its first batch. It is whole once an optimizer has stepped and the batch has ended.
    It lasts until the next fetch, validation or the end of the epoch, so that it includes the work of callbacks,
    checkpoints and loggers after the batch. The tracker sees the optimizer's step by the Trainer's count of them
    (``global_step``). That count is right under accumulation, for the short last group of an epoch, with several
    optimizers and for manual accumulation alike.

    If the loop nests phases (backward inside a manual `training_step`), the inner one interrupts the outer.

    Args:
        observers: The list of the fit. Unless the profiler records, it hears of fetches and checkpoints only, so that a
            step is cheaper.
        followers: The observers in it that would wait in vain for steps without the tracker: it takes them along.
        counts_all: Whether `counter` always sees every optimizer step, so that hooks of optimizers only limit phases.
    """

    def __init__(
        self,
        state: FitState,
        counter: TrainingLoop,
        observers: Observers,
        followers: Sequence[FitObserver] = (),
        *,
        counts_all: bool = False,
    ) -> None:
        self._state = state
        self._counter = counter
        self._observers = observers
        self._followers = followers
        self._numbered = False
        self._open = False
        self._paused = False
        self._in_batch = False
        self._batches = 0
        self._whole = False
        self._optimizer_steps = 0
        self._steps_by_optimizer = False
        self._optimizer_stepped = False
        self._unseen_batches = 0
        self._in_automatic_step = False
        self._in_optimizer = False
        self._began_in_optimizer = False
        self._phases: list[Phase] = []
        self._idle = _PHASE_HOOKS | (_OPTIMIZER_HOOKS if counts_all else frozenset())
        self._followed = _ALWAYS

    @property
    def idle(self) -> Collection[str]:
        """Hooks that only limit phases, unless the profiler records."""
        return () if self._followed is _ALL else self._idle

    def on_action_start(self, signal: Signal) -> None:
        if signal is Signal.FETCH and not self._in_batch:
            self._open_or_resume()
        if signal is Signal.VALIDATION:
            self._pause()
        elif signal is Signal.AUTOMATIC_STEP:
            self._in_automatic_step = True
        elif (phase := _PHASES.get(signal)) in self._followed:
            self._start_phase(phase)

    def on_action_end(self, signal: Signal) -> None:
        if signal is Signal.EPOCH:
            self._in_batch = False
            self._pause()
        elif signal is Signal.AUTOMATIC_STEP:
            self._in_automatic_step = False
            self._end_phase(Phase.OPTIMIZER)
        elif (phase := _PHASES.get(signal)) in self._followed:
            self._end_phase(phase)

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002 - not every loop numbers its batches
        """Start a step if none is open, and count the batch towards it."""
        # Without a fetch before it when `training_step` takes the iterator and fetches for itself.
        if not self._open or self._whole:
            self._open_or_resume()
        self._in_batch = True
        self._observers.add_batch(batch)

    def on_before_backward(self, loss: Any) -> None:  # noqa: ARG002
        if Phase.BACKWARD in self._followed:
            self._start_phase(Phase.BACKWARD)

    def on_after_backward(self) -> None:
        self._end_phase(Phase.BACKWARD)
        if self._in_automatic_step:
            self._start_optimizer()  # unscaling and clipping come before the optimizer's own hook

    def on_before_optimizer_step(self, optimizer: Any) -> None:  # noqa: ARG002
        self._start_optimizer()

    def _start_optimizer(self) -> None:
        if Phase.OPTIMIZER in self._followed and Phase.OPTIMIZER not in self._phases:
            self._began_in_optimizer = self._in_optimizer
            self._start_phase(Phase.OPTIMIZER)

    def on_optimizer_step_start(self) -> None:
        """An optimizer's `step` starts. Under automatic optimization it runs the closure, forward and backward."""
        self._in_optimizer = True

    def on_optimizer_step_end(self) -> None:
        """An optimizer's `step` ends, and with it a phase that started inside: ranges in a trace have to nest."""
        self._in_optimizer = False
        self._optimizer_stepped = True
        if self._began_in_optimizer:
            self._began_in_optimizer = False
            self._end_phase(Phase.OPTIMIZER)

    @property
    def batches(self) -> int:
        """Batches that have ended in the open step."""
        return self._batches

    @property
    def optimizer_stepped(self) -> bool:
        """Whether an optimizer has stepped in the open step."""
        return self._optimizer_stepped

    def on_batch_end(self, outputs: Any) -> None:  # noqa: ARG002
        self._in_batch = False
        self._in_automatic_step = False
        self._batches += 1
        if self._counter.global_step != self._optimizer_steps:
            self._steps_by_optimizer = True
            self._whole = True
        elif not self._steps_by_optimizer and not self._counter.automatic:
            # The Trainer does not count the steps of raw optimizers, but torch's hooks see them. If neither sees any,
            # each batch counts as a step after a while.
            self._unseen_batches = 0 if self._optimizer_stepped else self._unseen_batches + 1
            self._whole = self._optimizer_stepped or self._unseen_batches > UNSEEN_BATCHES

    def finish(self) -> None:
        """Drop an open step that is not whole."""
        if self._open:
            self._close()

    def close(self) -> None:
        for follower in self._followers[::-1]:
            self._observers.remove(follower)

    def _open_or_resume(self) -> None:
        if self._open and self._whole:
            self._close()
        state = self._state
        if not self._open:
            self._open, self._paused, self._whole, self._batches = True, False, False, 0
            self._optimizer_steps = self._counter.global_step
            self._optimizer_stepped = False
            if not self._numbered:
                # Not earlier: until the first step has started, the loops of a resumed Trainer still stand where its
                # checkpoint was saved, in the middle of the step before.
                self._numbered = True
                state.first_number = self._counter.step_number()
            state.step, state.checkpoint_saved = state.whole_steps, False
            self._observers.on_step_start()
            if state.recording != (self._followed is _ALL):
                self._followed = _ALL if state.recording else _ALWAYS
                self._observers.follow_phases(state.recording)
            state.in_step = True
        elif self._paused:
            self._paused = False
            self._observers.on_training_resume()
            state.in_step = True

    def _pause(self) -> None:
        if self._in_batch or self._paused:
            return
        if self._open and (self._whole or self._batches == 0):
            self._close()
        self._paused = True
        self._state.in_step = False
        self._observers.on_training_pause()

    def _close(self) -> None:
        while self._phases:
            self._end_phase(self._phases[-1])
        self._open = self._state.in_step = False
        self._state.whole_steps += self._whole
        if self._whole:
            self._observers.on_step_end()
        else:
            self._observers.on_step_dropped()

    def _start_phase(self, phase: Phase) -> None:
        if not self._open or self._paused:
            return
        if phase is Phase.CHECKPOINT:
            self._state.checkpoint_saved = True
        phases = self._phases
        if phases:
            self._observers.on_phase_end(phases[-1])
        phases.append(phase)
        self._observers.on_phase_start(phase)

    def _end_phase(self, phase: Phase) -> None:
        phases = self._phases
        if not phases or phases[-1] is not phase:
            return
        phases.pop()
        self._observers.on_phase_end(phase)
        if phases:
            self._observers.on_phase_start(phases[-1])
