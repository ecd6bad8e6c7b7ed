"""Hooks into torch that show where backward and the optimizer run, in a loop that calls nothing of ours there.

They are in place only while a `PerfLoop` is open. They change no tensor and no argument.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class CallHooks:
    """Listens to ``torch.autograd.backward``, which ``Tensor.backward`` calls, and to ``GradScaler.step``.

    A call inside another one, e.g. by activation checkpointing, belongs to the outer one. Other threads are left alone.

    Args:
        on_scaler_end: Called after that, also if the scaler skipped the optimizer's step because of an overflow.
    """

    def __init__(
        self,
        *,
        on_backward_start: Callable[[], None],
        on_backward_end: Callable[[], None],
        on_scaler_start: Callable[[], None],
        on_scaler_end: Callable[[], None],
    ) -> None:
        self._thread = threading.get_ident()
        self._on = True
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        self._wrap(torch.autograd, "backward", on_backward_start, on_backward_end)
        self._wrap(torch.amp.GradScaler, "step", on_scaler_start, on_scaler_end)

    def remove(self) -> None:
        """Restore the functions. A second call does nothing."""
        self._on = False
        for owner, name, wrapper, original in self._wrapped:
            # If something else has wrapped ours since, ours stays below it and only passes calls on.
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
        self._wrapped.clear()

    def _wrap(self, owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        original = getattr(owner, name)
        inside = False

        def hooked(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside or not self._on or torch.compiler.is_compiling() or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            inside = True
            before()
            try:
                return original(*args, **kwargs)
            finally:
                after()
                inside = False

        setattr(owner, name, hooked)
        self._wrapped.append((owner, name, hooked, original))
