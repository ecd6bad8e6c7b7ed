"""Where the training loop is: from hooks and taps to the begins and ends of whole optimizer steps and their phases."""

from __future__ import annotations

from collections.abc import Callable

from lightning_perf.callbacks.steps.phases import Phase, Signal

__all__ = ["StepObserver", "StepTracker"]


class StepObserver:
    """Follows the steps of a fit and does nothing of itself. Calls come in order, and phases never overlap."""

    @property
    def follows_phases(self) -> bool:
        """Whether it wants to hear of all phases of the step that has just begun, asked after `step_begins`.

        Where no observer does, fetches and checkpoints are told and nothing else: that makes a step cheaper.
        """
        return True

    def step_begins(self, index: int) -> None:
        """Step `index` begins, counted from 0 at the start of the fit."""

    def step_ends(self) -> None:
        """The step is whole: its optimizer has stepped, and callbacks and logging are done."""

    def step_dropped(self) -> None:
        """The step ends before it is whole, and its index will be used again, if training goes on."""

    def training_pauses(self) -> None:
        """Validation begins or the epoch ends: what follows belongs to no step, though one may be open."""

    def training_resumes(self) -> None:
        """The step that was open when training paused goes on."""

    def phase_begins(self, phase: Phase) -> None:
        """A phase of the open step begins."""

    def phase_ends(self, phase: Phase) -> None:
        """The phase ends."""


_PHASES = {
    Signal.FETCH: Phase.FETCH,
    Signal.TRANSFER: Phase.TRANSFER,
    Signal.FORWARD: Phase.FORWARD,
    Signal.MANUAL_STEP: Phase.OPTIMIZER,
    Signal.ZERO_GRAD: Phase.OPTIMIZER,
    Signal.CHECKPOINT: Phase.CHECKPOINT,
}


_ALL = frozenset(Phase)
_ALWAYS = frozenset({Phase.FETCH, Phase.CHECKPOINT})


class StepTracker:
    """Follows the training loop and tells observers of its steps.

    A step begins with the fetch of its first batch. It is whole once an optimizer has stepped and the batch has ended,
    and lasts until the next fetch, validation or the end of the epoch, so that what callbacks, checkpoints and loggers
    do after the batch belongs to it. The optimizer's step is seen by the Trainer's count of them: that is right under
    accumulation, the short last group of an epoch, several optimizers and manual accumulation alike.

    Phases that the loop nests (backward inside a manual `training_step`) are told one after the other: the inner one
    interrupts the outer.

    Args:
        count_optimizer_steps: Gives the Trainer's count of optimizer steps (``global_step``).
        observers: Told in this order when something begins, in reverse when it ends.
    """

    def __init__(self, count_optimizer_steps: Callable[[], int], *observers: StepObserver) -> None:
        self._count_optimizer_steps = count_optimizer_steps
        self._observers = observers
        self._reversed = observers[::-1]
        # Phases come by the dozen: who does not follow them is not told.
        self._phase_observers = tuple(o for o in observers if type(o).phase_begins is not StepObserver.phase_begins)
        self._phase_observers_reversed = self._phase_observers[::-1]
        self._index = 0
        self._open = False
        self._paused = False
        self._in_batch = False
        self._batches = 0
        self._whole = False
        self._optimizer_steps = 0
        self._steps_by_optimizer = False
        self._in_automatic_step = False
        self._in_optimizer = False
        self._began_in_optimizer = False
        self._phases: list[Phase] = []
        self._followed = _ALWAYS

    @property
    def steps(self) -> int:
        """Whole steps so far."""
        return self._index

    def starts(self, signal: Signal) -> None:
        """The Trainer begins an action."""
        if signal is Signal.FETCH and not self._in_batch:
            self._go_on()
        if signal is Signal.VALIDATION:
            self._pause()
        elif signal is Signal.AUTOMATIC_STEP:
            self._in_automatic_step = True
        elif (phase := _PHASES.get(signal)) in self._followed:
            self._push(phase)

    def stops(self, signal: Signal) -> None:
        """The Trainer has ended an action."""
        if signal is Signal.EPOCH:
            self._in_batch = False
            self._pause()
        elif signal is Signal.AUTOMATIC_STEP:
            self._in_automatic_step = False
            self._pop(Phase.OPTIMIZER)
        elif (phase := _PHASES.get(signal)) in self._followed:
            self._pop(phase)

    def batch_begins(self) -> None:
        """A batch is about to be trained on (`on_train_batch_start`)."""
        # Without a fetch before it when `training_step` takes the iterator and fetches for itself.
        if not self._open or self._whole:
            self._go_on()
        self._in_batch = True

    def backward_begins(self) -> None:
        """Backward begins (`on_before_backward`)."""
        if Phase.BACKWARD in self._followed:
            self._push(Phase.BACKWARD)

    def backward_ends(self) -> None:
        """Backward has ended (`on_after_backward`)."""
        self._pop(Phase.BACKWARD)
        if self._in_automatic_step:
            self.optimizer_begins()  # unscaling and clipping come before the optimizer's own hook

    def optimizer_begins(self) -> None:
        """The optimizer's part begins (`on_before_optimizer_step`)."""
        if Phase.OPTIMIZER in self._followed and Phase.OPTIMIZER not in self._phases:
            self._began_in_optimizer = self._in_optimizer
            self._push(Phase.OPTIMIZER)

    def optimizer_enters(self) -> None:
        """An optimizer's `step` begins; under automatic optimization it runs the closure, forward and backward."""
        self._in_optimizer = True

    def optimizer_leaves(self) -> None:
        """An optimizer's `step` ends, and with it a phase that began inside: ranges in a trace have to nest."""
        self._in_optimizer = False
        if self._began_in_optimizer:
            self._began_in_optimizer = False
            self._pop(Phase.OPTIMIZER)

    def batch_ends(self, *, automatic: bool) -> None:
        """A batch has been trained on (`on_train_batch_end`).

        Args:
            automatic: Whether the module uses automatic optimization.
        """
        self._in_batch = False
        self._in_automatic_step = False
        self._batches += 1
        if self._count_optimizer_steps() != self._optimizer_steps:
            self._steps_by_optimizer = True
            self._whole = True
        elif not automatic and not self._steps_by_optimizer:
            self._whole = True  # a module that steps raw optimizers, out of the Trainer's sight: a step is a batch

    def ends(self) -> None:
        """Training has ended or failed; an open step that is not whole is dropped."""
        if self._open:
            self._close()

    def _go_on(self) -> None:
        if self._open and self._whole:
            self._close()
        if not self._open:
            self._open, self._paused, self._whole, self._batches = True, False, False, 0
            self._optimizer_steps = self._count_optimizer_steps()
            for observer in self._observers:
                observer.step_begins(self._index)
            self._followed = _ALL if any(o.follows_phases for o in self._phase_observers) else _ALWAYS
        elif self._paused:
            self._paused = False
            for observer in self._observers:
                observer.training_resumes()

    def _pause(self) -> None:
        if self._in_batch or self._paused:
            return
        if self._open and (self._whole or self._batches == 0):
            self._close()
        self._paused = True
        for observer in self._reversed:
            observer.training_pauses()

    def _close(self) -> None:
        while self._phases:
            self._pop(self._phases[-1])
        self._open = False
        self._index += self._whole
        for observer in self._reversed:
            if self._whole:
                observer.step_ends()
            else:
                observer.step_dropped()

    def _push(self, phase: Phase) -> None:
        if not self._open or self._paused:
            return
        if self._phases:
            self._tell_end(self._phases[-1])
        self._phases.append(phase)
        self._tell_begin(phase)

    def _pop(self, phase: Phase) -> None:
        if not self._phases or self._phases[-1] is not phase:
            return
        self._tell_end(self._phases.pop())
        if self._phases:
            self._tell_begin(self._phases[-1])

    def _tell_begin(self, phase: Phase) -> None:
        for observer in self._phase_observers:
            observer.phase_begins(phase)

    def _tell_end(self, phase: Phase) -> None:
        for observer in self._phase_observers_reversed:
            observer.phase_ends(phase)
