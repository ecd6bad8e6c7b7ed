"""Mistakes in the order of calls: scale, backward, unscale, clip, step and update."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.nn.utils import clip_grad

from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.mistakes.found import FoundMistakes, user_place
from lightning_perf.callbacks.wrapped_methods import WrappedMethods

_GROUPING = "_group_tensors_by_device_and_dtype"
"""The function that `clip_grad_norm_` and `clip_grad_value_` both call. Replacing it also works where a program has
imported those two by name."""

_CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
_FRAMES = 8
"""Frames between a clipping function and the function that it calls, at most, with torch's wrappers."""


@dataclass
class _ScalerState:
    """The calls of one scaler since its last update.

    Attributes:
        pending: Whether a loss was scaled since the last update, so that gradients are scaled.
        unscaled: Parameters, by ``id``, that were unscaled since the last scaled loss.
        unscaled_at: Line of the user's code that last unscaled gradients.
        stepped: Optimizers, by ``id``, that stepped since the last scaled loss.
    """

    scaler: Any
    pending: bool = False
    unscaled: set[int] = field(default_factory=set)
    unscaled_at: str = ""
    stepped: set[int] = field(default_factory=set)


class ScalerCalls:
    """Listens to the methods of every `GradScaler` and to the clipping functions of torch, during the first steps.

    It replaces them by functions that take notes and then call the original.
    """

    def __init__(self, trainer: Trainer, found: FoundMistakes) -> None:
        self.users_scaler: Any = None
        """A scaler that the program made itself; None if none has scaled a loss."""
        self._trainer = trainer
        self._found = found
        self._states: dict[int, _ScalerState] = {}
        self._wrapped = WrappedMethods()

    def start(self) -> None:
        """Start to listen."""
        if self._wrapped.active:
            return
        listeners = {
            "scale": self._on_scale,
            "unscale_": self._on_unscale,
            "step": self._on_step,
            "update": self._on_update,
        }
        for name, listener in listeners.items():
            self._wrapped.wrap(torch.amp.GradScaler, name, partial(self._listening, listener))
        self._wrapped.wrap(clip_grad, _GROUPING, partial(self._listening, self._on_clip))

    def stop(self) -> None:
        """Restore the original functions, unless something else has replaced ours by now."""
        self._wrapped.restore()
        self._states.clear()

    def _listening(self, listener: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
        def listening(*args: Any, **kwargs: Any) -> Any:
            if self._wrapped.active:
                try:
                    listener(*args, *kwargs.values())
                except Exception as error:
                    self.stop()
                    self._found.failed(error)
            return original(*args, **kwargs)

        return listening

    def _state(self, scaler: Any) -> _ScalerState:
        return self._states.setdefault(id(scaler), _ScalerState(scaler))

    def _is_lightnings(self, scaler: Any) -> bool:
        return scaler is self._trainer.scaler

    def _on_scale(self, scaler: Any, *_: Any) -> None:
        if not scaler.is_enabled():
            return
        if not self._is_lightnings(scaler):
            self.users_scaler = scaler
        state = self._state(scaler)
        state.pending = True
        state.unscaled.clear()
        state.stepped.clear()

    def _on_unscale(self, scaler: Any, optimizer: Any, *_: Any) -> None:
        if not scaler.is_enabled():
            return
        name = type(optimizer).__name__
        parameters = _parameters(optimizer)
        if scaler._scale is None:
            self._report(
                "backward-without-scale",
                "A loss was not scaled before backward",
                "Call self.manual_backward(loss) instead of loss.backward().",
                f"{name} steps under a gradient scaler, but no loss went through its scale(). torch raises an error.",
                parameters,
            )
            return
        state = self._state(scaler)
        places = set(map(id, parameters))
        line = user_place(self._found.layers)[1]
        if places and places <= state.unscaled:
            self._report(
                "unscale-twice",
                f"Gradients of {name} are unscaled twice",
                "Remove your call of unscale_(): Lightning unscales the gradients before it calls "
                "on_before_optimizer_step, so clip or read them there."
                if self._is_lightnings(scaler)
                else "Remove one of the two calls of scaler.unscale_(optimizer).",
                "unscale_() was called twice since the last scaled loss. torch raises an error at the second call.",
                parameters,
                state.unscaled_at or line,
            )
        state.unscaled |= places
        state.unscaled_at = line

    def _on_step(self, scaler: Any, optimizer: Any, *_: Any) -> None:
        if not scaler.is_enabled():
            return
        state = self._state(scaler)
        others = state.stepped - {id(optimizer)}
        if not state.pending and others and id(optimizer) not in state.stepped and scaler._scale is not None:
            self._report(
                "shared-backward",
                "Two optimizers step after one backward pass under one loss scale",
                "Call self.manual_backward(loss) before each optimizer's step, or use precision='bf16-mixed', which "
                "has no loss scale."
                if self._is_lightnings(scaler)
                else "Call scaler.update() once, after the steps of all optimizers.",
                f"{type(optimizer).__name__} steps after the scale was updated for another optimizer. Whenever the "
                "scale changes, its gradients are divided by the wrong scale: they are off by 2 or 0.5 times.",
                _parameters(optimizer),
            )
        state.stepped.add(id(optimizer))

    def _on_update(self, scaler: Any, *_: Any) -> None:
        self._state(scaler).pending = False
        self._state(scaler).unscaled.clear()

    def _on_clip(self, nested: Any, *_: Any) -> None:
        if not _is_clipping():
            return
        gradients = {id(one) for group in nested for one in group if isinstance(one, torch.Tensor)}
        clipped = [
            parameter
            for optimizer in self._trainer.optimizers
            for parameter in _parameters(optimizer)
            if parameter.grad is not None and id(parameter.grad) in gradients
        ]
        for state in list(self._states.values()):
            # Gradients that an earlier step left behind may be among them. They are unscaled already.
            if not state.pending or not clipped or any(id(parameter) in state.unscaled for parameter in clipped):
                continue
            own = self._is_lightnings(state.scaler)
            name = self._found.parameters.get(id(clipped[0]), "a parameter")
            self._report(
                "clip-scaled-gradients" if own else "unscale-missing",
                "Gradients are clipped before they are unscaled",
                "Clip in your LightningModule's on_before_optimizer_step(self, optimizer), which runs after Lightning "
                "has unscaled the gradients."
                if own
                else "Call scaler.unscale_(optimizer) in the line before you clip.",
                f"The gradient of {name} is still multiplied by the loss scale, {float(state.scaler.get_scale()):g}, "
                "when you clip it. So nearly every gradient is cut down, and the step is too small by far.",
                clipped,
            )

    def _report(
        self, kind: str, title: str, action: str, evidence: str, parameters: list[Any], line: str | None = None
    ) -> None:
        """Report a mistake with these parameters, by default at the line of the call that is under way."""
        layer = self._found.layer_of(parameters[0]) if parameters else ""
        line = user_place(self._found.layers)[1] if line is None else line
        self._found.report(kind, title, action, evidence, layer=layer, line=line)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_clipping() -> bool:
    """Return whether a clipping function with a finite limit is under way, and not one that only measures a norm."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name in _CLIPPING:
            limit = frame.f_locals.get("max_norm", frame.f_locals.get("clip_value"))
            return not (isinstance(limit, (int, float)) and math.isinf(limit))
        frame = frame.f_back
    return False
