"""The tracker on sequences of events as the training loop sends them."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.fit_state import FitState, Phase, Signal
from lightning_perf.callbacks.steps.observers import FitObserver, Observers
from lightning_perf.callbacks.steps.step_tracker import UNSEEN_BATCHES, StepTracker


def noting(entry: str) -> Callable[[Diary], None]:
    return lambda diary: diary.note(entry)


class Diary(FitObserver):
    def __init__(self, state: FitState, name: str = "", entries: list[str] | None = None) -> None:
        self.state, self.name = state, name
        self.entries: list[str] = [] if entries is None else entries

    def note(self, entry: str) -> None:
        self.entries.append(self.name + entry)

    def on_step_start(self) -> None:
        self.note(f"step {self.state.step}")

    on_step_end, on_step_dropped, on_training_pause, on_training_resume = map(
        noting, ("end", "dropped", "pause", "resume")
    )

    def on_phase_start(self, phase: Phase) -> None:
        self.note(f"({phase.name.lower()}")

    def on_phase_end(self, phase: Phase) -> None:
        self.note(f"{phase.name.lower()})")


def counter(*, automatic: bool = True) -> Any:
    counting = SimpleNamespace(global_step=0, automatic=automatic)
    counting.step_number = lambda: counting.global_step
    return counting


def tracker(state: FitState, trainer: Any, *observers: FitObserver) -> StepTracker:
    every = Observers(ErrorReporter())
    made = StepTracker(state, trainer, every, observers)
    every.add(*observers, made)
    return made


class Loop:
    """A training loop that says what Lightning's would."""

    def __init__(self, *others: Callable[[FitState], FitObserver]) -> None:
        # Phases are followed while the profiler records.
        self.state = FitState(recording=True)
        self.diary = Diary(self.state)
        self.trainer = counter()
        self.tracker = tracker(self.state, self.trainer, *(each(self.state) for each in others), self.diary)

    def action(self, signal: Signal) -> None:
        self.tracker.on_action_start(signal)
        self.tracker.on_action_end(signal)

    def backward(self) -> None:
        self.tracker.on_before_backward(None)
        self.tracker.on_after_backward()

    def batch_end(self, optimizer_steps: int = 1, *, automatic: bool = True) -> None:
        self.trainer.global_step += optimizer_steps
        self.trainer.automatic = automatic
        self.tracker.on_batch_end(None)

    def train(self, optimizer_steps: int = 1, *, automatic: bool = True) -> None:
        self.tracker.on_batch_start(None, 0)
        self.batch_end(optimizer_steps, automatic=automatic)

    def run(self, events: str) -> str:
        """Let events happen, one per letter, and return what the observer has seen: a whole phase by its name alone."""
        start, end = self.tracker.on_action_start, self.tracker.on_action_end
        actions: dict[str, Callable[[], object]] = {
            "f": lambda: self.action(Signal.FETCH),
            "t": self.train,
            "a": lambda: self.train(0),
            "m": lambda: self.train(automatic=False),
            "n": lambda: self.train(0, automatic=False),
            "2": lambda: self.train(2, automatic=False),
            "b": lambda: self.tracker.on_batch_start(None, 0),
            "B": self.batch_end,
            "w": lambda: start(Signal.FORWARD),
            "W": lambda: end(Signal.FORWARD),
            "g": self.backward,
            "u": lambda: self.tracker.on_before_optimizer_step(None),
            "s": lambda: start(Signal.AUTOMATIC_STEP),
            "S": lambda: end(Signal.AUTOMATIC_STEP),
            "h": lambda: start(Signal.MANUAL_STEP),
            "H": lambda: end(Signal.MANUAL_STEP),
            "O": self.tracker.on_optimizer_step_start,
            "o": self.tracker.on_optimizer_step_end,
            "r": lambda: self.action(Signal.TRANSFER),
            "c": lambda: self.action(Signal.CHECKPOINT),
            "v": lambda: start(Signal.VALIDATION),
            "e": lambda: end(Signal.EPOCH),
            "x": self.tracker.finish,
        }
        for letter in events:
            actions[letter]()
        return re.sub(r"\((\w+), \1\)", r"\1", ", ".join(self.diary.entries))


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ("ftft", "step 0, fetch, end, step 1, fetch"),
        ("ftfte", "step 0, fetch, end, step 1, fetch, end, pause"),
        (
            "fafaftfafte",
            "step 0, fetch, fetch, fetch, end, step 1, fetch, fetch, end, pause",
        ),  # a short last group
        ("fo2fo2fo2", "step 0, fetch, end, step 1, fetch, end, step 2, fetch"),
        ("fonfonfon", "step 0, fetch, end, step 1, fetch, end, step 2, fetch"),  # the Trainer cannot see the optimizer
        ("fmfnfmfnfme", "step 0, fetch, end, step 1, fetch, fetch, end, step 2, fetch, fetch, end, pause"),
        ("fft", "step 0, fetch, fetch"),
        ("ftfe", "step 0, fetch, end, step 1, fetch, dropped, pause"),  # a fetch that finds no batch is no step
        ("ftfef", "step 0, fetch, end, step 1, fetch, dropped, pause, step 1, fetch"),
        ("ftvvv", "step 0, fetch, end, pause"),
        ("ftvr", "step 0, fetch, end, pause"),  # batches of validation have no phases
        ("ftvfavftf", "step 0, fetch, end, pause, step 1, fetch, pause, resume, fetch, end, step 2, fetch"),
        ("bfBbf", "step 0, fetch, end, step 1, fetch"),  # a module that fetches for itself
        # An optimizer may evaluate its closure again.
        ("bswWguwWguS", "step 0, forward, backward, optimizer, forward, optimizer, backward, optimizer"),
        ("bwghuHW", "step 0, forward, backward, forward, optimizer, forward"),  # phases that nest
        ("fbwxx", "step 0, fetch, forward, dropped"),  # a failure
    ],
)
def test_steps(events: str, seen: str) -> None:
    loop = Loop()
    assert loop.run(events) == seen
    assert loop.state.whole_steps == seen.split(", ").count("end")


@pytest.mark.parametrize(
    ("events", "steps"),
    [
        # The batches before the first step of the optimizer are no steps, whoever sees it step.
        (12 * "fnfnfnfm", 12),
        (12 * "fnfnfnfon", 12),
        ((UNSEEN_BATCHES + 10) * "fn", 10),  # nobody sees it
    ],
)
def test_steps_of_manual_optimization(events: str, steps: int) -> None:
    loop = Loop()
    loop.run(events + "x")
    assert loop.state.whole_steps == steps


def test_calls_have_the_order_given_at_a_start_and_the_reverse_at_an_end() -> None:
    entries: list[str] = []
    state = FitState(recording=True)
    a, b = Diary(state, "a ", entries), Diary(state, "b ", entries)
    subject = tracker(state, counter(automatic=False), a, b)
    subject.on_batch_start(None, 0)
    subject.on_optimizer_step_end()
    subject.on_batch_end(None)
    subject.finish()
    assert entries == ["a step 0", "b step 0", "b end", "a end"]
    entries.clear()
    subject.on_action_start(Signal.FETCH)
    subject.on_action_end(Signal.FETCH)
    assert entries == ["a step 1", "b step 1", "a (fetch", "b (fetch", "b fetch)", "a fetch)"]


class Recorder(Diary):
    """Records the second step alone."""

    def on_step_start(self) -> None:
        self.state.recording = self.state.step == 1


def test_phases_are_followed_only_while_the_profiler_records() -> None:
    light, full = "fetch, checkpoint", "fetch, forward, backward, optimizer, checkpoint"
    seen = f"step 0, {light}, end, step 1, {full}, end, step 2, {light}, end"
    assert Loop(Recorder).run(3 * "fbsOwWguoSBc" + "x") == seen


def test_a_checkpoint_is_noted_for_its_step_alone() -> None:
    loop = Loop()
    for events, saved in (("ft", False), ("c", True), ("f", False)):
        loop.run(events)
        assert loop.state.checkpoint_saved is saved


def test_the_first_number_is_read_once_the_first_step_starts() -> None:
    loop = Loop()
    loop.trainer.global_step = 7
    loop.run("ftf")
    assert (loop.state.first_number, loop.state.step, loop.state.number) == (7, 1, 8)
