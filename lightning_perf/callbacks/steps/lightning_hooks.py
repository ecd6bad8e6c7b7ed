"""Hooks into a Trainer's profiler, which it calls around every action, and into optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.callbacks.steps.hook_times import HookTimes
from lightning_perf.callbacks.wrapped_methods import WrappedMethods

_EXACT = {
    "optimizer_step": Signal.MANUAL_STEP,
    "save_checkpoint": Signal.CHECKPOINT,
    "run_training_epoch": Signal.EPOCH,
}

# The class names between are the user's. Several actions announce validation. Which one comes first depends on whether
# the loop is between two steps, and whether the validation data is loaded again.
_BY_ENDS = (
    ("[", ".train_dataloader_next", Signal.FETCH),
    ("[Strategy]", ".batch_to_device", Signal.TRANSFER),
    ("[Strategy]", ".training_step", Signal.FORWARD),
    ("[LightningModule]", ".optimizer_step", Signal.AUTOMATIC_STEP),
    ("[LightningModule]", ".optimizer_zero_grad", Signal.ZERO_GRAD),
    ("[LightningModule]", ".on_validation_model_zero_grad", Signal.VALIDATION),
    ("[LightningModule]", ".on_validation_model_eval", Signal.VALIDATION),
    ("[LightningModule]", ".val_dataloader", Signal.VALIDATION),
    ("[LightningDataModule]", ".val_dataloader", Signal.VALIDATION),
    ("[Callback]", ".on_validation_start", Signal.VALIDATION),
    ("[", ".val_next", Signal.VALIDATION),
)


def read_signal(action: str) -> Signal | None:
    """Translate an action name of the Trainer's profiler into a signal.

    The names are those of Lightning 2.6 (``trainer/call.py`` and ``loops/`` in its source).

    Returns:
        The signal, or None for an action that marks no phase.

    Example:
        >>> read_signal("[Strategy]DDPStrategy.batch_to_device")
        <Signal.TRANSFER: 'the batch is moved to the device'>
        >>> read_signal("[Callback]ModelSummary.on_fit_start") is None
        True
    """
    exact = _EXACT.get(action)
    if exact is not None:
        return exact
    for start, end, signal in _BY_ENDS:
        if action.endswith(end) and action.startswith(start):
            return signal
    return None


class ActionPlan(NamedTuple):
    """Functions to call around an action of the Trainer. None of them may raise.

    A compiled step may make one, so it is of a class that torch.compile knows.

    Attributes:
        announced: Called before the listener of its start.
        started: Called after that listener, right before the action.
        stopping: Called right after the action, before the listener of its end.
    """

    announced: Callable[[], None] | None = None
    started: Callable[[], None] | None = None
    stopping: Callable[[], None] | None = None
    stopped: Callable[[], None] | None = None


Listener = Callable[[Signal], None]
Call = Callable[[], object]

PHASE_SIGNALS = frozenset(
    {Signal.TRANSFER, Signal.FORWARD, Signal.AUTOMATIC_STEP, Signal.MANUAL_STEP, Signal.ZERO_GRAD}
)
"""Signals that only limit a phase. They matter while a window records."""

_LIGHTNING = ("lightning", "pytorch_lightning")


class ProfilerHooks:
    """Listens to a Trainer's calls of ``profiler.start`` and ``profiler.stop`` until it is removed.

    It wraps the methods of the instance and leaves the class alone. The profiler does its own work as before. If it has
    no work of its own (the Trainer's default), `profile` returns contexts that are made once per action. There are two
    dozen of them in each step, and this saves more time than the hooks take.

    Args:
        on_start: Called before an action with a signal starts; None to listen to no signal. It must not raise.
        on_stop: Called after an action with a signal has ended. It must not raise.
        times: Times the other actions while a window records; only with the Trainer's default profiler.
        plan: Returns the functions to call around an action. It is asked once per action.
    """

    def __init__(
        self,
        profiler: Any,
        *,
        on_start: Listener | None = None,
        on_stop: Listener | None = None,
        times: HookTimes | None = None,
        plan: Callable[[str, Signal | None], ActionPlan] | None = None,
    ) -> None:
        self._on_start, self._on_stop = on_start, on_stop
        self._times = times
        self._plan = plan
        self._follows_phases = True
        self._plans: dict[str, tuple[Signal | None, ActionPlan]] = {}
        self._actions: dict[str, _Action] = {}
        self._wrapped = WrappedMethods()
        idle = _does_nothing(profiler)
        self._wrapped.wrap(profiler, "start", self._before)
        self._wrapped.wrap(profiler, "stop", self._after)
        if idle:
            self._wrapped.wrap(profiler, "profile", self._around)
            if times is not None:
                times.attached = True

    def remove(self) -> None:
        """Restore the profiler's own methods. A second call does nothing."""
        self._actions.clear()
        self._wrapped.restore()

    def follow_phases(self, follow: bool) -> None:
        """Pass on the signals of all phases, or only those that also matter while nothing is recorded."""
        self._follows_phases = follow
        self._actions.clear()

    def _make(self, name: str) -> _Action:
        """Return the calls around an action."""
        if name not in self._plans:
            signal = read_signal(name)
            self._plans[name] = (signal, self._plan(name, signal) if self._plan is not None else ActionPlan())
        signal, plan = self._plans[name]
        starts, stops = [plan.announced], [plan.stopping]
        if signal is not None and (self._follows_phases or signal not in PHASE_SIGNALS):
            if self._times is not None and signal is Signal.AUTOMATIC_STEP:
                starts.append(self._times.step_starts)
                stops.append(partial(self._times.step_ends, name))
            elif self._times is not None and signal is Signal.FORWARD:
                starts.append(self._times.closure_starts)
            starts.append(partial(self._on_start, signal) if self._on_start is not None else None)
            stops.append(partial(self._on_stop, signal) if self._on_stop is not None else None)
        made = self._actions[name] = _Action(name, (*starts, plan.started), (*stops, plan.stopped))
        return made

    def _before(self, start: Callable[[str], None]) -> Callable[[str], None]:
        wrapped = self._wrapped

        def hooked_start(action_name: str) -> None:
            if wrapped.active:
                action = self._actions.get(action_name) or self._make(action_name)
                action.__enter__()
            start(action_name)

        return hooked_start

    def _after(self, stop: Callable[[str], None]) -> Callable[[str], None]:
        wrapped = self._wrapped

        def hooked_stop(action_name: str) -> None:
            stop(action_name)
            if wrapped.active:
                action = self._actions.get(action_name) or self._make(action_name)
                action.__exit__(None, None, None)

        return hooked_stop

    def _around(self, profile: Callable[[str], AbstractContextManager[Any]]) -> Callable[..., Any]:
        actions, times = self._actions, self._times

        def hooked_profile(action_name: str) -> Any:
            action = actions.get(action_name)
            if action is None:
                if not self._wrapped.active:
                    return profile(action_name)
                action = self._make(action_name)
            if times is not None and times.timing and self._plans[action_name][0] is None:
                return times.measure(action_name, action)
            return action

        return hooked_profile


class _Action:
    """The calls around an action. It keeps no state, so one context serves all of its calls, also nested ones."""

    __slots__ = ("_starts", "_stops", "name")

    def __init__(self, name: str, starts: Sequence[Call | None], stops: Sequence[Call | None]) -> None:
        self.name = name
        self._starts = tuple(call for call in starts if call is not None)
        self._stops = tuple(call for call in stops if call is not None)

    def __enter__(self) -> str:
        for call in self._starts:
            call()
        return self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for call in self._stops:
            call()


def _does_nothing(profiler: Any) -> bool:
    """Return whether this is the unmodified profiler that a Trainer has by default."""
    kind = type(profiler)
    known = kind.__name__ == "PassThroughProfiler" and kind.__module__.split(".")[0] in _LIGHTNING
    return known and not vars(profiler).keys() & {"start", "stop", "profile"}


class OptimizerHooks:
    """Listens to the start and end of an optimizer's `step`, from inside torch's own range for it.

    It listens to any optimizer in the thread that made the hooks: another thread trains something else. A step that
    raises an error has no end. The listeners must not raise.
    """

    def __init__(self, *, on_start: Callable[[], object], on_end: Callable[[], object]) -> None:
        thread = threading.get_ident()
        self._on = True
        self._inside = False

        def hook(listener: Callable[[], object]) -> Callable[..., None]:
            def hooked_step(*_: Any) -> None:
                if self._on and not torch.compiler.is_dynamo_compiling() and threading.get_ident() == thread:
                    self._inside = True
                    listener()
                    self._inside = False

            return hooked_step

        self._handles = (
            register_optimizer_step_pre_hook(hook(on_start)),
            register_optimizer_step_post_hook(hook(on_end)),
        )

    def remove(self) -> bool:
        """Remove the hooks, and return whether they are gone. A second call does nothing."""
        self._on = False
        if not self._inside:  # otherwise torch iterates over its hooks just now: the next call removes them
            for handle in self._handles:
                handle.remove()
        return not self._inside
