"""The observers of a fit: one list in one order, and one isolation of their errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling

from lightning_perf.callbacks.steps.fit_state import Phase, Signal
from lightning_perf.run_files.captures import RecordedWindow
from lightning_perf.run_files.steps import StepSample

if TYPE_CHECKING:
    from lightning_perf.callbacks.error_reporter import ErrorReporter


class FitObserver:
    """Follows a fit until its end. A derived class overrides the hooks that it needs.

    Attributes:
        consequence: The part of the results that is missing if the observer fails, as a clause.
    """

    consequence = "profiling is off for the rest of this fit"
    observers: Observers | None = None
    """The list that calls the observer; `Observers.add` sets it."""

    @property
    def idle(self) -> Collection[str]:
        """Hooks in which the observer has nothing to do at present. After a change, call `idle_changes`."""
        return ()

    def idle_changes(self) -> None:
        """Let the list read `idle` again."""
        if self.observers is not None:
            self.observers.refresh()

    def open(self) -> None:
        """The observer is in the list, which closes it at the end."""

    def stop_waiting(self) -> None:
        """Do not wait for the device any more: it may wait for a rank that is gone."""

    def finish(self) -> None:
        """Training has ended or failed: write the rest."""

    def results(self) -> dict[str, Any]:
        """Return the results of the fit, by the names of `RunPrecision`. Called after `finish`."""
        return {}

    def close(self) -> None:
        """Remove everything that the observer added to torch and to the program. A second call does nothing."""

    def notes(self) -> list[str]:
        """Return notes for the report, one line each. Called after the fit."""
        return []

    # Hooks of the training loop.

    def on_epoch_start(self) -> None:
        """An epoch of training starts."""

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Training on a batch starts."""

    def on_action_start(self, signal: Signal) -> None:
        """The loop starts an action."""

    def on_action_end(self, signal: Signal) -> None:
        """The loop has ended an action."""

    def on_before_backward(self, loss: Any) -> None:
        """A backward pass starts, on a scaled loss."""

    def on_after_backward(self) -> None:
        """The backward pass has ended, and gradients are still scaled."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to step, or to be skipped by a gradient scaler."""

    def on_optimizer_step_start(self) -> None:
        """The `step` of an optimizer starts. In automatic optimization it runs forward and backward."""

    def on_optimizer_step_end(self) -> None:
        """The `step` of an optimizer has ended."""

    def on_batch_end(self, outputs: Any) -> None:
        """Training on a batch has ended."""

    def on_epoch_end(self) -> None:
        """An epoch of training has ended."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be saved."""

    # Hooks of whole optimizer steps and their phases. The step tracker calls them.

    def on_step_start(self) -> None:
        """The step `FitState.step` starts."""

    def add_batch(self, batch: Any) -> None:
        """The open step trains on a batch."""

    def on_step_end(self) -> None:
        """The step is whole: its optimizer has stepped, and callbacks and logging are done."""

    def on_step_dropped(self) -> None:
        """The step ends before it is whole. If training continues, the next step has the same index."""

    def on_training_pause(self) -> None:
        """Validation starts or the epoch ends: the work until the next step belongs to none, though one may be open."""

    def on_training_resume(self) -> None:
        """Training resumes inside the step that was open at the pause."""

    def on_phase_start(self, phase: Phase) -> None:
        """A phase of the open step starts. Phases never overlap."""

    def on_phase_end(self, phase: Phase) -> None:
        """The phase ends."""

    def follow_phases(self, follow: bool) -> None:
        """From here on, all phases have to be followed, or fetches and checkpoints only. Called as a step starts."""

    # Hooks of measurements.

    def on_sample(self, sample: StepSample) -> None:
        """A step was timed. On a device its time is known some steps later."""

    def on_window(self, window: RecordedWindow) -> None:
        """A window of the profiler has ended, whether it left a trace or not."""


class Hook:
    """One hook of all observers that override it. If one fails, it is dropped and the others continue.

    Args:
        reverse: Whether the last observer is called first.

    Attributes:
        calls: The methods to call; empty if nobody has anything to do.
    """

    __slots__ = ("_drop", "_inherited", "_reverse", "calls")

    def __init__(
        self, inherited: Callable[..., None], drop: Callable[[Any, Exception], None], *, reverse: bool = False
    ) -> None:
        self._inherited = inherited
        self._drop = drop
        self._reverse = reverse
        self.calls: tuple[MethodType, ...] = ()

    def call_on(self, observers: Sequence[FitObserver]) -> None:
        """Call these observers, except those that inherit the method that does nothing, or are idle."""
        name = self._inherited.__name__
        calls: list[MethodType] = [getattr(each, name) for each in observers if name not in each.idle]
        kept = [call for call in calls if call.__func__ is not self._inherited]
        self.calls = tuple(reversed(kept) if self._reverse else kept)


class PlainHook(Hook):
    """A hook without arguments, which costs half as much."""

    __slots__ = ()

    def __call__(self) -> None:
        """Call the observers."""
        for call in self.calls:
            try:
                call()
            except Exception as error:  # noqa: PERF203 - the next observer is called all the same
                self._drop(call.__self__, error)


class ValueHook(Hook):
    """A hook with one argument."""

    __slots__ = ()

    def __call__(self, value: Any) -> None:
        """Call the observers."""
        for call in self.calls:
            try:
                call(value)
            except Exception as error:  # noqa: PERF203
                self._drop(call.__self__, error)


class ArgumentsHook(Hook):
    """A hook with several arguments."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> None:
        """Call the observers."""
        for call in self.calls:
            try:
                call(*arguments)
            except Exception as error:  # noqa: PERF203
                self._drop(call.__self__, error)


class UncompiledHook(ArgumentsHook):
    """A hook that a step compiled as a whole may contain. It then does nothing, so that it adds no graph break."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> None:
        """Call the observers, unless torch compiles the step."""
        if not is_dynamo_compiling():
            super().__call__(*arguments)


class Observers:
    """The observers of one fit. One that fails is reported once and removed, and training continues.

    The order of `add` matters. Hooks that start something call the observers in this order, hooks that end something in
    reverse. So the last observers time and record none of the others' work.
    """

    def __init__(self, errors: ErrorReporter) -> None:
        base, drop = FitObserver, self.drop
        self._errors = errors
        self._observers: list[FitObserver] = []
        self._dropped: list[FitObserver] = []
        self.on_change: list[Callable[[], None]] = []
        """Called when hooks were added or removed."""
        self.on_epoch_start = PlainHook(base.on_epoch_start, drop)
        self.on_batch_start = ArgumentsHook(base.on_batch_start, drop)
        self.on_action_start = ValueHook(base.on_action_start, drop)
        self.on_action_end = ValueHook(base.on_action_end, drop, reverse=True)
        self.on_before_backward = UncompiledHook(base.on_before_backward, drop)
        self.on_after_backward = UncompiledHook(base.on_after_backward, drop, reverse=True)
        self.on_before_optimizer_step = UncompiledHook(base.on_before_optimizer_step, drop)
        self.on_optimizer_step_start = PlainHook(base.on_optimizer_step_start, drop)
        self.on_optimizer_step_end = PlainHook(base.on_optimizer_step_end, drop, reverse=True)
        self.on_batch_end = ValueHook(base.on_batch_end, drop, reverse=True)
        self.on_epoch_end = PlainHook(base.on_epoch_end, drop, reverse=True)
        self.on_save_checkpoint = ValueHook(base.on_save_checkpoint, drop)
        self.on_step_start = PlainHook(base.on_step_start, drop)
        self.add_batch = ValueHook(base.add_batch, drop)
        self.on_step_end = PlainHook(base.on_step_end, drop, reverse=True)
        self.on_step_dropped = PlainHook(base.on_step_dropped, drop, reverse=True)
        self.on_training_pause = PlainHook(base.on_training_pause, drop, reverse=True)
        self.on_training_resume = PlainHook(base.on_training_resume, drop)
        self.on_phase_start = ValueHook(base.on_phase_start, drop)
        self.on_phase_end = ValueHook(base.on_phase_end, drop, reverse=True)
        self.follow_phases = ValueHook(base.follow_phases, drop)
        self.on_sample = ValueHook(base.on_sample, drop)
        self.on_window = ValueHook(base.on_window, drop)
        self._hooks = [each for each in vars(self).values() if isinstance(each, Hook)]

    def __contains__(self, observer: object) -> bool:
        """Whether an observer is at work."""
        return any(each is observer for each in self._observers)

    def __iter__(self) -> Iterator[FitObserver]:
        """Return the observers at work."""
        return iter(self._observers)

    def add(self, *observers: FitObserver) -> None:
        """Add observers at the end of the list, and open them."""
        self._observers += observers
        for observer in observers:
            observer.observers = self
        self.refresh()
        for observer in observers:
            with self.isolate(observer):
                observer.open()

    def refresh(self) -> None:
        """Call the hooks in which somebody has something to do."""
        for hook in self._hooks:
            hook.call_on(self._observers)
        for changed in self.on_change:
            changed()

    @contextmanager
    def isolate(self, observer: FitObserver) -> Iterator[None]:
        """Drop an observer if the block fails."""
        try:
            yield
        except Exception as error:
            self.drop(observer, error)

    def drop(self, observer: FitObserver, error: Exception) -> None:
        """Report the error of an observer, and do without it."""
        if observer in self:
            self._errors.report(observer.consequence, error)
            self.remove(observer)

    def remove(self, observer: FitObserver) -> None:
        """Close an observer, and call it no more."""
        if observer in self:
            self._observers = [each for each in self._observers if each is not observer]
            self._dropped = [*self._dropped, observer]
            self.refresh()
            self._close(observer)

    def finish(self, *, may_wait: bool = True) -> dict[str, Any]:
        """End the observation in reverse order, and return the results of all observers."""
        results: dict[str, Any] = {}
        for observer in self._observers[::-1]:
            with self.isolate(observer):
                if not may_wait:
                    observer.stop_waiting()
                observer.finish()
                results |= observer.results()
        dropped = self._dropped
        for observer in self._observers[::-1]:
            self.remove(observer)
        # Once more those that were dropped: inside of a hook of torch it cannot be removed.
        for observer in dropped:
            self._close(observer)
        self._dropped = []
        return results

    def _close(self, observer: FitObserver) -> None:
        with self._errors.instead("measurements so far may be incomplete"):
            observer.close()
