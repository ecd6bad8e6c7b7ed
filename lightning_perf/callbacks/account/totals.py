"""The totals of a fit that only the observers of its steps know: samples, tokens, and garbage collections."""

from __future__ import annotations

import gc
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from lightning_perf.callbacks.account.fit_account import FitAccountant
from lightning_perf.callbacks.steps.core_use import thread_use
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.fit.account import GcTotals
from lightning_perf.run_files.steps import StepSample

MARKED_STEPS = 16
"""Steps after which the account keeps the times until then for the first time, and then each time they have doubled."""


class FitTotals(FitObserver):
    """Adds up the samples and tokens of a fit for its account, and lets it keep the time of the first half apart."""

    consequence = "the account of the fit lacks its totals"

    def __init__(self, state: FitState, account: FitAccountant) -> None:
        self._state = state
        self._account = account
        self._garbage = GarbageWatch(state)
        self._samples: int | None = 0
        self._tokens: int | None = 0
        self._next_mark = MARKED_STEPS
        self._use = thread_use()

    def open(self) -> None:
        self._garbage.start()

    def on_sample(self, sample: StepSample) -> None:
        """Count the sample of a step; the totals are unknown from the first step without a count on."""
        self._samples = None if self._samples is None or sample.samples is None else self._samples + sample.samples
        self._tokens = None if self._tokens is None or sample.tokens is None else self._tokens + sample.tokens
        if self._state.whole_steps >= self._next_mark:
            self._next_mark = 2 * self._state.whole_steps
            self._account.mark_steps(self._state.whole_steps)

    def finish(self) -> None:
        if not self._state.whole_steps:
            return
        use = thread_use()
        self._account.totals = {
            "steps": self._state.whole_steps,
            "samples": self._samples,
            "tokens": self._tokens,
            "collections": self._garbage.totals(),
            "core_wait_ns": max(0, use[1] - self._use[1]) if use is not None and self._use is not None else None,
        }

    def close(self) -> None:
        self._garbage.close()


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
