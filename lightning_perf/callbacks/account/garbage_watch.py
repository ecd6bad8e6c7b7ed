"""Times Python's garbage collections in the steps of a fit."""

from __future__ import annotations

import gc
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.run_files.fit.account import GcTotals

COUNTED_NS = 500_000_000
"""Time of the collections of a generation from which its objects are counted: it takes a good part of a collection."""


class GarbageWatch:
    """Times each collection in a step, if the thread that made the watch runs it. A step itself costs nothing.

    It holds no module and no tensor: torch.compile then leaves the callback alone when a collection calls it inside
    compiled code.
    """

    def __init__(self, state: FitState) -> None:
        self._state = state
        self._thread = get_ident()
        self._since_ns = 0
        self._rows = [[0, 0, 0, 0] for _ in gc.get_threshold()]

    def start(self) -> None:
        """Watch until `close`."""
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        """Stop to watch. A second call does nothing."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def totals(self) -> tuple[GcTotals, ...]:
        """Return the collections so far by generation, with the objects that it has now if they took long."""
        return tuple(
            GcTotals(
                generation, count, ns, longest_ns, freed, len(gc.get_objects(generation)) if ns >= COUNTED_NS else None
            )
            for generation, (count, ns, longest_ns, freed) in enumerate(self._rows)
        )

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            watched = self._state.in_step and get_ident() == self._thread
            self._since_ns = perf_counter_ns() if watched else 0
        elif self._since_ns:  # one collection at a time: this one ends in the thread in which it started
            time_ns = perf_counter_ns() - self._since_ns
            self._since_ns = 0
            row = self._rows[info["generation"]]
            row[0] += 1
            row[1] += time_ns
            row[2] = max(row[2], time_ns)
            row[3] += info["collected"]
