"""The observers of a fit: their order, and what the error of one of them costs."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.observers import FitObserver, Observers


class Diary(FitObserver):
    def __init__(self, name: str, entries: list[str], fails_at: str = "") -> None:
        self.name = name
        self.entries = entries
        self.fails_at = fails_at
        self.consequence = f"{name} is missing"

    def note(self, entry: str) -> None:
        self.entries.append(f"{self.name} {entry}")
        if entry == self.fails_at:
            raise ZeroDivisionError(entry)

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.note("start")

    def on_before_backward(self, loss: Any) -> None:
        self.note("backward")

    def on_batch_end(self, outputs: Any) -> None:
        self.note("end")

    def finish(self) -> None:
        self.note("finish")

    def results(self) -> dict[str, Any]:
        return {self.name: len(self.entries)}

    def close(self) -> None:
        self.note("close")


def observed(*observers: FitObserver) -> tuple[Observers, ErrorReporter]:
    errors = ErrorReporter()
    every = Observers(errors)
    for observer in observers:
        every.add(observer)
    return every, errors


def two_batches(observers: Observers) -> dict[str, Any]:
    for _ in range(2):
        observers.on_batch_start(None, 0)
        observers.on_before_backward(None)
        observers.on_batch_end(None)
    return observers.finish()


def test_hooks_start_in_the_order_of_the_list_and_end_in_reverse() -> None:
    entries: list[str] = []
    observers, _ = observed(Diary("a", entries), FitObserver(), Diary("b", entries))
    observers.on_batch_start(None, 0)
    observers.on_before_backward(None)
    observers.on_after_backward()
    observers.on_batch_end(None)
    assert entries == ["a start", "b start", "a backward", "b backward", "b end", "a end"]
    entries.clear()
    assert set(observers.finish()) == {"a", "b"}
    assert entries == ["b finish", "a finish", "b close", "a close"]
    assert observers.finish() == {}


@pytest.mark.parametrize("fails_at", ["start", "backward", "end", "finish"])
def test_an_observer_that_fails_is_reported_once_and_the_others_go_on(fails_at: str) -> None:
    entries: list[str] = []
    bad = Diary("bad", entries, fails_at)
    observers, errors = observed(bad, Diary("good", entries))
    with pytest.warns(RuntimeWarning, match=f"bad is missing, training continues .ZeroDivisionError: {fails_at}"):
        results = two_batches(observers)
    assert set(results) == {"good"}
    assert len(errors.messages) == 1
    assert entries.count(f"bad {fails_at}") == 1
    assert entries.count("good start") == entries.count("good end") == 2
    assert "bad close" in entries
    assert bad not in observers


def test_an_error_while_closing_costs_nothing_more() -> None:
    entries: list[str] = []
    observers, errors = observed(Diary("a", entries), Diary("b", entries, "close"))
    with pytest.warns(RuntimeWarning, match="measurements so far may be incomplete"):
        assert set(observers.finish()) == {"a", "b"}
    assert entries[-1] == "a close"
    assert len(errors.messages) == 1
