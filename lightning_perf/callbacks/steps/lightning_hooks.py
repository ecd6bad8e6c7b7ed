"""Taps: on the profiler of a Trainer, which it tells of every action it begins and ends, and on optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lightning_perf.callbacks.steps.phases import Signal, read_signal

__all__ = ["OptimizerTap", "ProfilerTap"]

Listener = Callable[[Signal], None]

_TAP = "_lightning_perf_tap"
_LIGHTNING = ("lightning", "pytorch_lightning")


class ProfilerTap:
    """Hears the signals among a Trainer's calls of ``profiler.start`` and ``profiler.stop``, until it is removed.

    The instance's methods are wrapped, its class is left alone, and the profiler does its own work as before, also when
    a listener is at fault. Where it has no work of its own, as the Trainer's default, it is not called at all for
    actions without a signal, two dozen in each step: that saves about as much time as the tap takes.

    Args:
        profiler: The Trainer's profiler, of whichever kind.
        on_start: Called before an action with a signal begins.
        on_stop: Called after an action with a signal has ended.
    """

    def __init__(self, profiler: Any, *, on_start: Listener, on_stop: Listener) -> None:
        self._profiler = profiler
        self._signals: dict[str, Signal | None] = {}
        self._wrappers: dict[str, Callable[..., Any]] = {
            "start": self._before(profiler.start, on_start),
            "stop": self._after(profiler.stop, on_stop),
        }
        if _does_nothing(profiler):
            self._wrappers["profile"] = self._around(profiler.profile)
        # An entry of None means that the instance had no such attribute of its own.
        self._originals = {name: vars(profiler).get(name) for name in self._wrappers}
        self._on = True
        for name, wrapper in self._wrappers.items():
            setattr(wrapper, _TAP, self)
            setattr(profiler, name, wrapper)

    def remove(self) -> None:
        """Give the profiler its own methods back. Does nothing the second time."""
        self._on = False
        for name, wrapper in self._wrappers.items():
            if vars(self._profiler).get(name) is not wrapper:
                continue  # another tap lies over this one, which goes on as a plain call until that is removed
            original = self._originals[name]
            while (below := getattr(original, _TAP, None)) is not None and not below._on:
                original = below._originals[name]
            if original is None:
                delattr(self._profiler, name)
            else:
                setattr(self._profiler, name, original)

    def _heard(self, action: str) -> Signal | None:
        signal = self._signals[action] = read_signal(action)
        return signal

    # The wrappers run dozens of times a step, nearly always for an action that means nothing.

    def _before(self, start: Callable[[str], None], listener: Listener) -> Callable[[str], None]:
        signals = self._signals

        def tapped_start(action_name: str) -> None:
            try:
                signal = signals[action_name]
            except KeyError:
                signal = self._heard(action_name)
            if signal is not None and self._on:
                listener(signal)
            start(action_name)

        return tapped_start

    def _after(self, stop: Callable[[str], None], listener: Listener) -> Callable[[str], None]:
        signals = self._signals

        def tapped_stop(action_name: str) -> None:
            stop(action_name)
            try:
                signal = signals[action_name]
            except KeyError:
                signal = self._heard(action_name)
            if signal is not None and self._on:
                listener(signal)

        return tapped_stop

    def _around(self, profile: Callable[[str], AbstractContextManager[Any]]) -> Callable[..., Any]:
        signals = self._signals
        contexts: dict[str, AbstractContextManager[Any]] = {}

        def tapped_profile(action_name: str) -> AbstractContextManager[Any]:
            if action_name in contexts and self._on:
                return contexts[action_name]
            if action_name not in signals and self._heard(action_name) is None:
                contexts[action_name] = nullcontext(action_name)
            return profile(action_name)

        return tapped_profile


def _does_nothing(profiler: Any) -> bool:
    """Whether it is the profiler that a Trainer has by default, as it came from Lightning."""
    kind = type(profiler)
    known = kind.__name__ == "PassThroughProfiler" and kind.__module__.split(".")[0] in _LIGHTNING
    return known and not vars(profiler).keys() & {"start", "stop", "profile"}


class OptimizerTap:
    """Hears when an optimizer's `step` begins and ends, from inside the range that torch marks it with.

    It hears any optimizer that steps in the thread that made the tap: another thread trains something else.

    Args:
        on_enter: Called when a step begins.
        on_leave: Called when it ends, not if it raised.
    """

    def __init__(self, *, on_enter: Callable[[], None], on_leave: Callable[[], None]) -> None:
        thread = threading.get_ident()

        def hook(listener: Callable[[], None]) -> Callable[..., None]:
            def heard(*_: Any) -> None:
                if not torch.compiler.is_compiling() and threading.get_ident() == thread:
                    listener()

            return heard

        self._handles = (
            register_optimizer_step_pre_hook(hook(on_enter)),
            register_optimizer_step_post_hook(hook(on_leave)),
        )

    def remove(self) -> None:
        """Leave the optimizers alone again. Does nothing the second time."""
        for handle in self._handles:
            handle.remove()
