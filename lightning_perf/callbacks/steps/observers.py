"""The observers of a fit: one list in one order, and one isolation of their errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling

from lightning_perf.callbacks.steps.fit_state import Observer, Signal

if TYPE_CHECKING:
    from lightning_perf.callbacks.error_reporter import ErrorReporter


class FitObserver(Observer):
    """Follows a fit. A derived class overrides the hooks that it needs.

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

    def results(self) -> dict[str, Any]:
        """Return the results of the fit, by the names of `RunPrecision`. Called after `finish`."""
        return {}


class Hook:
    """One hook of all observers that override it. If one fails, it is dropped and the others continue.

    Args:
        reverse: Whether the last observer is called first.
        traceable: Whether a step compiled as a whole may contain the hook. It then does nothing, so that it adds no
            graph break.

    Attributes:
        calls: The methods to call; empty if nobody has anything to do.
    """

    __slots__ = ("_drop", "_inherited", "_reverse", "_traceable", "calls")

    def __init__(
        self,
        inherited: Callable[..., None],
        drop: Callable[[Any, Exception], None],
        *,
        reverse: bool = False,
        traceable: bool = False,
    ) -> None:
        self._inherited = inherited
        self._drop = drop
        self._reverse = reverse
        self._traceable = traceable
        self.calls: tuple[MethodType, ...] = ()

    def call_on(self, observers: Sequence[FitObserver]) -> None:
        """Call these observers, except those that inherit the method that does nothing, or are idle."""
        name = self._inherited.__name__
        calls: list[MethodType] = [getattr(each, name) for each in observers if name not in each.idle]
        kept = [call for call in calls if call.__func__ is not self._inherited]
        self.calls = tuple(reversed(kept) if self._reverse else kept)

    def __call__(self, *arguments: Any) -> None:
        """Call the observers."""
        if self._traceable and is_dynamo_compiling():
            return
        for call in self.calls:
            try:
                call(*arguments)
            except Exception as error:  # noqa: PERF203 - the next observer is called all the same
                self._drop(call.__self__, error)


class Observers:
    """The observers of one fit. One that fails is reported once and removed, and training continues.

    The order of `add` matters. Hooks that start something call the observers in this order, hooks that end something in
    reverse. So the last observer, the step tracker, times and records none of the others' work.
    """

    def __init__(self, errors: ErrorReporter) -> None:
        base, drop = FitObserver, self.drop
        self._errors = errors
        self._observers: list[FitObserver] = []
        self._dropped: list[FitObserver] = []
        self.on_change: list[Callable[[], None]] = []
        """Called when hooks were added or removed."""
        self.on_epoch_start = Hook(base.on_epoch_start, drop)
        self.on_batch_start = Hook(base.on_batch_start, drop)
        self.on_action_start = Hook(base.on_action_start, drop)
        self.on_action_end = Hook(base.on_action_end, drop, reverse=True)
        self.on_before_backward = Hook(base.on_before_backward, drop, traceable=True)
        self.on_after_backward = Hook(base.on_after_backward, drop, reverse=True, traceable=True)
        self.on_before_optimizer_step = Hook(base.on_before_optimizer_step, drop, traceable=True)
        self.on_optimizer_step_start = Hook(base.on_optimizer_step_start, drop)
        self.on_optimizer_step_end = Hook(base.on_optimizer_step_end, drop, reverse=True)
        self.on_batch_end = Hook(base.on_batch_end, drop, reverse=True)
        self.on_epoch_end = Hook(base.on_epoch_end, drop, reverse=True)
        self.on_save_checkpoint = Hook(base.on_save_checkpoint, drop)
        self._hooks = [each for each in vars(self).values() if isinstance(each, Hook)]

    def __contains__(self, observer: object) -> bool:
        """Whether an observer is at work."""
        return any(each is observer for each in self._observers)

    def __iter__(self) -> Iterator[FitObserver]:
        """Return the observers at work."""
        return iter(self._observers)

    def add(self, observer: FitObserver) -> None:
        """Add an observer at the end of the list."""
        self._observers.append(observer)
        observer.observers = self
        self.refresh()

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
        if observer not in self:
            return
        self._remove(observer)
        self._dropped.append(observer)
        self._errors.report(observer.consequence, error)
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
        # Once more those that were dropped: inside of a hook of torch it cannot be removed.
        for observer in (*self._observers[::-1], *self._dropped):
            self._remove(observer)
            self._close(observer)
        self._dropped = []
        return results

    def _close(self, observer: FitObserver) -> None:
        with self._errors.instead("measurements so far may be incomplete"):
            observer.close()

    def _remove(self, observer: FitObserver) -> None:
        self._observers = [each for each in self._observers if each is not observer]
        self.refresh()
