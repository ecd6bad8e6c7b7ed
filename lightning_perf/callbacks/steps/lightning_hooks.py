"""Hooks into a Trainer's profiler, which it calls around every action, and into optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.callbacks.steps.hook_times import HookTimes

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


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """Functions to call around an action of the Trainer. None of them may raise.

    Attributes:
        announced: Called before the listener of its start.
        started: Called after that listener, right before the action.
        stopping: Called right after the action, before the listener of its end.
    """

    announced: Callable[[], None] | None = None
    started: Callable[[], None] | None = None
    stopping: Callable[[], None] | None = None
    stopped: Callable[[], None] | None = None


class Actions(Protocol):
    """Follows the actions of a Trainer, with or without a signal."""

    def plan(self, action: str, signal: Signal | None) -> ActionPlan | None:
        """Return the functions to call around an action, or None. It is asked once per action."""


Listener = Callable[[Signal], None]

_OWNER = "_lightning_perf_hooks"
_LIGHTNING = ("lightning", "pytorch_lightning")


class ProfilerHooks:
    """Listens to a Trainer's calls of ``profiler.start`` and ``profiler.stop`` until it is removed.

    It wraps the methods of the instance and leaves the class alone. The profiler does its own work as before. If it has
    no work of its own (the Trainer's default), actions without a signal no longer call it. There are two dozen of them
    in each step, and this saves about as much time as the hooks take.

    Args:
        on_start: Called before an action with a signal starts; None to listen to no signal. It must not raise.
        on_stop: Called after an action with a signal has ended. It must not raise.
        times: Times the other actions while a window records; only with the Trainer's default profiler.
    """

    def __init__(
        self,
        profiler: Any,
        *,
        on_start: Listener | None = None,
        on_stop: Listener | None = None,
        times: HookTimes | None = None,
        account: Actions | None = None,
    ) -> None:
        self._profiler = profiler
        self._actions: dict[str, tuple[Signal | None, ActionPlan]] = {}
        self._times = times
        self._account = account
        self._wrappers: dict[str, Callable[..., Any]] = {
            "start": self._before(profiler.start, on_start),
            "stop": self._after(profiler.stop, on_stop),
        }
        if _does_nothing(profiler):
            self._wrappers["profile"] = self._around(profiler.profile, times)
            if times is not None:
                times.attached = True
        # An entry of None means that the instance had no such attribute of its own.
        self._originals = {name: vars(profiler).get(name) for name in self._wrappers}
        self._on = True
        for name, wrapper in self._wrappers.items():
            setattr(wrapper, _OWNER, self)
            setattr(profiler, name, wrapper)

    def remove(self) -> None:
        """Restore the profiler's own methods. A second call does nothing."""
        self._on = False
        for name, wrapper in self._wrappers.items():
            if vars(self._profiler).get(name) is not wrapper:
                continue  # newer hooks wrap these, and these pass calls on until the newer ones are removed
            original = self._originals[name]
            while (below := getattr(original, _OWNER, None)) is not None and not below._on:
                original = below._originals[name]
            if original is None:
                delattr(self._profiler, name)
            else:
                setattr(self._profiler, name, original)

    def _read(self, action: str) -> tuple[Signal | None, ActionPlan]:
        signal = read_signal(action)
        plan = self._account.plan(action, signal) if self._account is not None else None
        read = self._actions[action] = (signal, plan or _NO_PLAN)
        return read

    # The wrappers run dozens of times per step, nearly always for an action without a signal.

    def _before(self, start: Callable[[str], None], listener: Listener | None) -> Callable[[str], None]:
        actions = self._actions

        def hooked_start(action_name: str) -> None:
            try:
                signal, plan = actions[action_name]
            except KeyError:
                signal, plan = self._read(action_name)
            if not self._on:
                start(action_name)
                return
            if plan.announced is not None:
                plan.announced()
            if signal is not None and listener is not None:
                if self._times is not None and self._times.timing:
                    if signal is Signal.AUTOMATIC_STEP:
                        self._times.step_starts()
                    elif signal is Signal.FORWARD:
                        self._times.closure_starts()
                listener(signal)
            start(action_name)
            if plan.started is not None:
                plan.started()

        return hooked_start

    def _after(self, stop: Callable[[str], None], listener: Listener | None) -> Callable[[str], None]:
        actions = self._actions

        def hooked_stop(action_name: str) -> None:
            try:
                signal, plan = actions[action_name]
            except KeyError:
                signal, plan = self._read(action_name)
            if self._on and plan.stopping is not None:
                plan.stopping()
            stop(action_name)
            if not self._on:
                return
            if signal is not None and listener is not None:
                if signal is Signal.AUTOMATIC_STEP and self._times is not None:
                    self._times.step_ends(action_name)
                listener(signal)
            if plan.stopped is not None:
                plan.stopped()

        return hooked_stop

    def _around(
        self, profile: Callable[[str], AbstractContextManager[Any]], times: HookTimes | None
    ) -> Callable[..., Any]:
        actions = self._actions
        contexts: dict[str, AbstractContextManager[Any]] = {}

        def hooked_profile(action_name: str) -> AbstractContextManager[Any]:
            if action_name in contexts and self._on:
                context = contexts[action_name]
                return context if times is None or not times.timing else times.measure(action_name, context)
            if action_name not in actions and self._read(action_name)[0] is None:
                plan = actions[action_name][1]
                if plan.started is not None and plan.stopped is not None:
                    contexts[action_name] = _Planned(action_name, plan.started, plan.stopped)
                else:
                    contexts[action_name] = nullcontext(action_name)
                if self._on:
                    return hooked_profile(action_name)
            return profile(action_name)

        return hooked_profile


_NO_PLAN = ActionPlan()


class _Planned(AbstractContextManager[str]):
    """A context for all calls of one action. It keeps no state, so calls may nest."""

    __slots__ = ("_action", "_started", "_stopped")

    def __init__(self, action: str, started: Callable[[], None], stopped: Callable[[], None]) -> None:
        self._action, self._started, self._stopped = action, started, stopped

    def __enter__(self) -> str:
        self._started()
        return self._action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped()


def _does_nothing(profiler: Any) -> bool:
    """Return whether this is the unmodified profiler that a Trainer has by default."""
    kind = type(profiler)
    known = kind.__name__ == "PassThroughProfiler" and kind.__module__.split(".")[0] in _LIGHTNING
    return known and not vars(profiler).keys() & {"start", "stop", "profile"}


class OptimizerHooks:
    """Listens to the start and end of an optimizer's `step`, from inside torch's own range for it.

    It listens to any optimizer in the thread that made the hooks: another thread trains something else.

    Args:
        on_start: Called when a step starts. It must not raise.
        on_end: Called when it ends, not if it raised. It must not raise.
    """

    def __init__(self, *, on_start: Callable[[], None], on_end: Callable[[], None]) -> None:
        thread = threading.get_ident()
        self._on = True
        self._inside = False

        def hook(listener: Callable[[], None]) -> Callable[..., None]:
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

    def remove(self) -> None:
        """Remove the hooks. A second call does nothing."""
        self._on = False
        if self._inside:
            return  # torch iterates over its hooks just now: the next call removes them
        for handle in self._handles:
            handle.remove()
