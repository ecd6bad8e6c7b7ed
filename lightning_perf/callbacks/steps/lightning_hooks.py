"""Hooks into a Trainer's profiler, which it calls around every action, and into optimizers."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.callbacks.steps.observers import FitObserver
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

MAX_HOOKS = 8
"""Hooks that are noted in a trace, the slowest first."""

_OWN = {"InjectedCallback", "PerfCallback", "PrecisionCallback"}

_HOOK = re.compile(r"^\[(?:Callback|LightningModule|LightningDataModule)\](?P<owner>\w+).*\.(?P<hook>\w+)$")


class HookTimes(FitObserver):
    """Times the hooks of callbacks and modules during a window, and notes facts about the loop.

    A trace does not show which callback or module ran.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._facts = {
            "loggers": [type(logger).__name__ for logger in trainer.loggers],
            "log_every_n_steps": int(trainer.log_every_n_steps),
        }
        self.time_ns: defaultdict[str, int] = defaultdict(int)
        """The time of each action of the Trainer in the window."""
        self._around_ns = 0
        self._since_ns: int | None = None
        self.timing = False
        """Whether a window records."""
        self.attached = False
        """Whether the Trainer's profiler reports hooks at all."""

    @property
    def idle(self) -> Collection[str]:
        """The one hook, unless a window records."""
        return () if self.timing else ("on_optimizer_step_end",)

    def step_starts(self) -> None:
        """Time the user's ``optimizer_step`` from here to its closure."""
        self._around_ns, self._since_ns = 0, time.perf_counter_ns()

    def closure_starts(self) -> None:
        """Stop to time ``optimizer_step``: its closure starts, with forward and backward."""
        if self._since_ns is not None:
            self._around_ns += time.perf_counter_ns() - self._since_ns
            self._since_ns = None

    def on_optimizer_step_end(self) -> None:
        """Time ``optimizer_step`` again: the optimizer's own step has ended."""
        self._since_ns = time.perf_counter_ns()

    def step_ends(self, action: str) -> None:
        """Note the time of ``optimizer_step`` outside its closure and the optimizer."""
        self.closure_starts()
        self.time_ns[action] += self._around_ns

    def start(self) -> None:
        """Start to time, with all times at zero."""
        self.time_ns.clear()
        self.timing = True

    def stop(self, steps: int) -> dict[str, object]:
        """Stop to time."""
        self.timing = False
        hooks: defaultdict[str, int] = defaultdict(int)
        for action, spent_ns in self.time_ns.items():
            found = _HOOK.match(action)
            if found is not None and found["owner"] not in _OWN:
                hooks[f"{found['owner']}.{found['hook']}"] += spent_ns
        slowest = sorted(hooks, key=lambda name: (-hooks[name], name))[:MAX_HOOKS]
        times = {name: hooks[name] for name in slowest} if self.attached else None
        return {**self._facts, "steps": steps, "hooks_ns": times, "bar_values": _bar_values(self._trainer)}


def _bar_values(trainer: Trainer) -> list[str] | None:
    """Return the values that are logged in each step for the progress bar; None if Lightning does not tell.

    Lightning reads them after each batch, even without a bar (``_LoggerConnector.on_batch_end`` in its source).
    """
    results = getattr(getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None), "_results", None)
    if not isinstance(results, dict):
        return None
    logged: Iterable[Any] = (getattr(result, "meta", None) for result in results.values())
    names = (meta.name for meta in logged if getattr(meta, "prog_bar", False) and getattr(meta, "on_step", False))
    return list(dict.fromkeys(names))


class ProfilerHooks:
    """Calls functions around the actions of a Trainer, by its calls of ``profiler.start`` and ``profiler.stop``.

    It wraps the methods of the instance and leaves the class alone. The profiler does its own work as before. If it has
    no work of its own (the Trainer's default), `profile` returns contexts that are made once per action. There are two
    dozen of them in each step, and this saves more time than the hooks take.

    Args:
        plan: Returns the functions to call around an action. It is asked once per action.
    """

    def __init__(
        self, profiler: Any, plan: Callable[[str, Signal | None], ActionPlan] = lambda _, __: ActionPlan()
    ) -> None:
        self._plan = plan
        self._listeners: tuple[Listener, Listener] | None = None
        self._times: HookTimes | None = None
        self._follows_phases = False
        self._plans: dict[str, tuple[Signal | None, ActionPlan]] = {}
        self._actions: dict[str, _Action] = {}
        self._wrapped = WrappedMethods()
        self._replaces = _does_nothing(profiler)
        self._wrapped.wrap(profiler, "start", self._before)
        self._wrapped.wrap(profiler, "stop", self._after)
        if self._replaces:
            self._wrapped.wrap(profiler, "profile", self._around)

    def listen(self, on_start: Listener, on_stop: Listener, times: HookTimes | None = None) -> None:
        """Call listeners before and after each action with a signal. They must not raise.

        With `times`, the other actions are timed while all phases are followed, if the profiler is the default one.
        """
        self._listeners, self._times = (on_start, on_stop), times
        if times is not None:
            times.attached = self._replaces
        self._actions.clear()

    def follow_phases(self, follow: bool) -> None:
        """Pass on the signals of all phases, or only those that also matter while nothing is recorded."""
        self._follows_phases = follow
        self._actions.clear()

    def stop_listening(self) -> None:
        """Call the functions of the plan only."""
        self._listeners = self._times = None
        self._actions.clear()

    def remove(self) -> None:
        """Restore the profiler's own methods. A second call does nothing."""
        self._actions.clear()
        self._wrapped.restore()

    def _make(self, name: str) -> _Action:
        """Return the calls around an action."""
        if name not in self._plans:
            signal = read_signal(name)
            self._plans[name] = (signal, self._plan(name, signal))
        signal, plan = self._plans[name]
        starts, stops = [plan.announced], [plan.stopping]
        times = self._times if self._follows_phases else None
        if signal is None and times is not None and self._replaces:
            timed = _TimedAction(name, times.time_ns)
            made = _Action(name, (*starts, plan.started, timed.start), (timed.stop, *stops, plan.stopped))
            self._actions[name] = made
            return made
        if signal is not None and self._listeners is not None and (self._follows_phases or signal not in PHASE_SIGNALS):
            if times is not None and signal is Signal.AUTOMATIC_STEP:
                starts.append(times.step_starts)
                stops.append(partial(times.step_ends, name))
            elif times is not None and signal is Signal.FORWARD:
                starts.append(times.closure_starts)
            starts.append(partial(self._listeners[0], signal))
            stops.append(partial(self._listeners[1], signal))
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

    def _around(self, profile: Callable[[str], Any]) -> Callable[..., Any]:
        actions = self._actions

        def hooked_profile(action_name: str) -> Any:
            action = actions.get(action_name)
            if action is None:
                return self._make(action_name) if self._wrapped.active else profile(action_name)
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


class _TimedAction:
    """Adds up the time of an action, also of nested ones."""

    def __init__(self, name: str, time_ns: defaultdict[str, int]) -> None:
        self._name, self._time_ns = name, time_ns
        self._starts_ns: list[int] = []

    def start(self) -> None:
        self._starts_ns.append(time.perf_counter_ns())

    def stop(self) -> None:
        if self._starts_ns:  # otherwise it began before the window
            self._time_ns[self._name] += time.perf_counter_ns() - self._starts_ns.pop()


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
