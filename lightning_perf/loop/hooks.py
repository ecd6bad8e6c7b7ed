"""Hooks into torch that show where backward, the optimizer and fetches run, in a loop that calls nothing of ours there.

They are in place only while a `PerfLoop` is open. They change no tensor and no argument.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.callbacks.wrapped_methods import WrappedMethods


class CallHooks:
    """Tells observers of ``torch.autograd.backward``, which ``Tensor.backward`` calls, and of ``GradScaler.step``.

    A call inside another one, e.g. by activation checkpointing, belongs to the outer one. Other threads are left alone.
    """

    def __init__(self, observers: Observers) -> None:
        self._thread = threading.get_ident()
        self._wrapped = WrappedMethods()

        def backward_starts() -> None:
            observers.on_action_end(Signal.FORWARD)
            observers.on_before_backward(None)

        def scaler_starts() -> None:
            observers.on_action_end(Signal.FORWARD)
            observers.on_before_optimizer_step(None)

        def scaler_ends() -> None:
            observers.on_action_end(Signal.MANUAL_STEP)
            observers.on_optimizer_step_end()

        backward = functools.partial(self._listening, backward_starts, observers.on_after_backward)
        self._wrapped.wrap(torch.autograd, "backward", backward)
        self._wrapped.wrap(torch.amp.GradScaler, "step", functools.partial(self._listening, scaler_starts, scaler_ends))

    def remove(self) -> None:
        """Restore the functions. A second call does nothing."""
        self._wrapped.restore()

    def _listening(
        self, before: Callable[[], None], after: Callable[[], None], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        wrapped, thread = self._wrapped, self._thread
        inside = False

        def hooked(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside or not wrapped.active or torch.compiler.is_compiling() or threading.get_ident() != thread:
                return original(*args, **kwargs)
            inside = True
            before()
            try:
                return original(*args, **kwargs)
            finally:
                after()
                inside = False

        return hooked


class FetchHooks:
    """Listens to the iterators of torch's loaders: those of one data set, and all others.

    Args:
        on_end: Gets the batch, or None where the data ends or cannot be read.
        on_other: Called when another loader fetches.
    """

    def __init__(
        self, dataset: Any, on_start: Callable[[], None], on_end: Callable[[Any], None], on_other: Callable[[], None]
    ) -> None:
        self._wrapped = wrapped = WrappedMethods()

        def listening(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def hooked(iterator: Any) -> Any:
                if not wrapped.active:
                    return original(iterator)
                if iterator._dataset is not dataset:
                    on_other()
                    return original(iterator)
                on_start()
                batch = None
                try:
                    batch = original(iterator)
                finally:
                    on_end(batch)
                return batch

            return hooked

        wrapped.wrap(_BaseDataLoaderIter, "__next__", listening)

    def remove(self) -> None:
        """Restore the iterators. A second call does nothing."""
        self._wrapped.restore()
