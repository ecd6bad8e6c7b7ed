"""The forecast's share of the time of a fit: measures it, and decides whether more may be spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class ForecastBudget:
    """Adds up the forecast's time on the host and the device, and compares it with the time of the fit.

    Device time is known some steps later, because reading it at once would wait for the device.

    Args:
        share: The most that the forecast may take of the fit's time, 0 to 1.
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
