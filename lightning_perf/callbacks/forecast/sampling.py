"""Sampling of layers: hooks for one batch that never fail the training, and a share of its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class LayerHooks:
    """Hooks of layers for one batch. The user's passes continue after an error of a hook, which `check` then raises."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        """The first error of a hook; no hook does anything after it."""
        self._handles: list[Any] = []

    def __bool__(self) -> bool:
        """Whether there are any hooks of layers."""
        return bool(self._handles)

    def on_forward(self, layer: torch.nn.Module, read: Callable[[Any, Any, Any], None]) -> None:
        """Call a function with the layer, its inputs and its output, until `remove`."""
        self._handles.append(layer.register_forward_hook(lambda *arguments: self._guard(read, *arguments)))

    def on_gradient(self, output: torch.Tensor, read: Callable[[torch.Tensor], None]) -> None:
        """Call a function with the gradient of a tensor."""
        output.register_hook(lambda gradient: self._guard(read, gradient))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Remove the hooks of layers."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def check(self) -> None:
        """Raise the error of a hook, if there was one."""
        if self.error is not None:
            raise self.error

    def _guard(self, read: Callable[..., None], *arguments: Any) -> None:
        if self.error is None:
            try:
                read(*arguments)
            except Exception as error:
                self.error = error


class ForecastBudget:
    """Adds up the forecast's time on the host and the device, and compares it with the time of the fit.

    Device time is known some steps later, because reading it at once would wait for the device. The forecast may take
    at most `share` of the fit's time, 0 to 1.
    """

    def __init__(self, share: float, device: torch.device, *, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._share = share
        self._cuda = device.type == "cuda"
        self._now_ns = now_ns
        self._start_ns = now_ns()
        self._pending: list[tuple[int, Any, Any]] = []
        self._known_ns = 0

    @property
    def cost_ns(self) -> int:
        """The cost so far. Where host and device worked at the same time, the longer of both counts."""
        waiting = []
        for host_ns, start, end in self._pending:
            if end.query():
                self._known_ns += max(host_ns, round(start.elapsed_time(end) * 1e6))
            else:
                waiting.append((host_ns, start, end))
        self._pending = waiting
        return self._known_ns + sum(host_ns for host_ns, _, _ in waiting)

    @property
    def elapsed_ns(self) -> int:
        """Time since the start of training."""
        return self._now_ns() - self._start_ns

    def allows(self, expected_ns: float) -> bool:
        """Return whether the budget has room for more work."""
        return self.cost_ns + expected_ns <= self._share * self.elapsed_ns

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Charge the work inside the block to the budget."""
        began_ns = self._now_ns()
        start = self._event()
        try:
            yield
        finally:
            end = self._event()
            host_ns = self._now_ns() - began_ns
            if start is None:
                self._known_ns += host_ns
            else:
                self._pending.append((host_ns, start, end))

    def _event(self) -> Any:
        if not self._cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
