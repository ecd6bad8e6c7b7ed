"""The tracker on sequences of events as the training loop sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.fit_state import FitState, Phase, Signal
from lightning_perf.callbacks.steps.observers import FitObserver, Observers
from lightning_perf.callbacks.steps.step_tracker import UNSEEN_BATCHES, StepTracker


class Diary(FitObserver):
    def __init__(self, state: FitState, name: str = "", entries: list[str] | None = None) -> None:
        self.state = state
        self.name = name
        self.entries: list[str] = [] if entries is None else entries

    def note(self, entry: str) -> None:
        self.entries.append(self.name + entry)

    def on_step_start(self) -> None:
        self.note(f"step {self.state.step}")

    def on_step_end(self) -> None:
        self.note("end")

    def on_step_dropped(self) -> None:
        self.note("dropped")

    def on_training_pause(self) -> None:
        self.note("pause")

    def on_training_resume(self) -> None:
        self.note("resume")

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

    def __init__(self) -> None:
        # Phases are followed while the profiler records.
        self.state = FitState(recording=True)
        self.diary = Diary(self.state)
        self.trainer = counter()
        self.tracker = tracker(self.state, self.trainer, self.diary)

    @contextmanager
    def action(self, signal: Signal) -> Iterator[None]:
        self.tracker.on_action_start(signal)
        yield
        self.tracker.on_action_end(signal)

    def fetch(self) -> None:
        with self.action(Signal.FETCH):
            pass

    def backward(self) -> None:
        self.tracker.on_before_backward(None)
        self.tracker.on_after_backward()

    def train(self, *, optimizer_steps: int = 1, automatic: bool = True) -> None:
        self.tracker.on_batch_start(None, 0)
        self.trainer.global_step += optimizer_steps
        self.trainer.automatic = automatic
        self.tracker.on_batch_end(None)

    def run(self, events: str) -> str:
        """Let events happen, one per letter, and return what the observer has seen."""
        actions = {
            "f": self.fetch,
            "t": self.train,
            "a": lambda: self.train(optimizer_steps=0),
            "m": lambda: self.train(automatic=False),
            "n": lambda: self.train(optimizer_steps=0, automatic=False),
            "2": lambda: self.train(optimizer_steps=2, automatic=False),
            "o": self.tracker.on_optimizer_step_end,
            "v": lambda: self.tracker.on_action_start(Signal.VALIDATION),
            "e": lambda: self.tracker.on_action_end(Signal.EPOCH),
        }
        for letter in events:
            actions[letter]()
        return ", ".join(self.diary.entries).replace("(fetch, fetch)", "()")


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ("ftft", "step 0, (), end, step 1, ()"),
        ("ftfte", "step 0, (), end, step 1, (), end, pause"),
        ("fafaftfafte", "step 0, (), (), (), end, step 1, (), (), end, pause"),  # the last group is short
        ("fo2fo2fo2", "step 0, (), end, step 1, (), end, step 2, ()"),
        ("fonfonfon", "step 0, (), end, step 1, (), end, step 2, ()"),  # the Trainer cannot see the optimizer
        ("fmfnfmfnfme", "step 0, (), end, step 1, (), (), end, step 2, (), (), end, pause"),
        ("fft", "step 0, (), ()"),
        ("ftfe", "step 0, (), end, step 1, (), dropped, pause"),  # a fetch that finds no batch is no step
        ("ftfef", "step 0, (), end, step 1, (), dropped, pause, step 1, ()"),
        ("ftvvv", "step 0, (), end, pause"),
        ("ftvfavftf", "step 0, (), end, pause, step 1, (), pause, resume, (), end, step 2, ()"),
    ],
)
def test_steps(events: str, seen: str) -> None:
    loop = Loop()
    assert loop.run(events) == seen
    assert loop.state.whole_steps == seen.split(", ").count("end")


def test_batches_of_validation_have_no_phases() -> None:
    loop = Loop()
    loop.run("ftv")
    with loop.action(Signal.TRANSFER):
        pass
    assert loop.run("") == "step 0, (), end, pause"


@pytest.mark.parametrize("seen", ["trainer", "torch"])
def test_manual_accumulation_counts_no_step_before_the_first(seen: str) -> None:
    """Measured: 15 steps instead of 12, since each batch before the first optimizer step counted as one."""
    loop = Loop()
    for batch in range(48):
        loop.fetch()
        steps = batch % 4 == 3
        if steps and seen == "torch":
            loop.tracker.on_optimizer_step_end()
        loop.train(optimizer_steps=steps if seen == "trainer" else 0, automatic=False)
    loop.tracker.finish()
    assert loop.state.whole_steps == 12


def test_batches_are_steps_where_nothing_sees_the_optimizer() -> None:
    loop = Loop()
    for _ in range(UNSEEN_BATCHES + 10):
        loop.fetch()
        loop.train(optimizer_steps=0, automatic=False)
    loop.tracker.finish()
    assert loop.state.whole_steps == 10


def test_a_module_that_fetches_for_itself() -> None:
    loop = Loop()
    for _ in range(2):
        loop.tracker.on_batch_start(None, 0)
        loop.fetch()
        loop.trainer.global_step += 1
        loop.tracker.on_batch_end(None)
    assert ", ".join(loop.diary.entries) == "step 0, (fetch, fetch), end, step 1, (fetch, fetch)"


def test_phases_of_automatic_optimization() -> None:
    loop = Loop()
    loop.tracker.on_batch_start(None, 0)
    with loop.action(Signal.AUTOMATIC_STEP):
        for _ in range(2):  # an optimizer may evaluate its closure again
            with loop.action(Signal.FORWARD):
                pass
            loop.backward()
            loop.tracker.on_before_optimizer_step(None)
    assert ", ".join(loop.diary.entries) == (
        "step 0, (forward, forward), (backward, backward), (optimizer, optimizer), (forward, forward), (optimizer, "
        "optimizer), (backward, backward), (optimizer, optimizer)"
    )


def test_nested_phases_are_told_one_after_the_other() -> None:
    loop = Loop()
    loop.tracker.on_batch_start(None, 0)
    with loop.action(Signal.FORWARD):
        loop.backward()
        with loop.action(Signal.MANUAL_STEP):
            loop.tracker.on_before_optimizer_step(None)
    assert ", ".join(loop.diary.entries) == (
        "step 0, (forward, forward), (backward, backward), (forward, forward), (optimizer, optimizer), "
        "(forward, forward)"
    )


def test_a_failure_drops_the_step_with_its_phases_closed() -> None:
    loop = Loop()
    loop.fetch()
    loop.tracker.on_batch_start(None, 0)
    loop.tracker.on_action_start(Signal.FORWARD)
    loop.tracker.finish()
    assert ", ".join(loop.diary.entries) == "step 0, (fetch, fetch), (forward, forward), dropped"
    loop.tracker.finish()
    assert loop.state.whole_steps == 0


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


def test_phases_are_followed_only_while_the_profiler_records() -> None:
    class Recorder(FitObserver):
        def on_step_start(self) -> None:
            state.recording = state.step == 1

    entries: list[str] = []
    state, trainer = FitState(), counter()
    timer = Diary(state, "", entries)
    subject = tracker(state, trainer, Recorder(), timer)
    for _ in range(3):
        subject.on_action_start(Signal.FETCH)
        subject.on_action_end(Signal.FETCH)
        subject.on_batch_start(None, 0)
        subject.on_action_start(Signal.AUTOMATIC_STEP)
        subject.on_optimizer_step_start()
        subject.on_action_start(Signal.FORWARD)
        subject.on_action_end(Signal.FORWARD)
        subject.on_before_backward(None)
        subject.on_after_backward()
        subject.on_before_optimizer_step(None)
        subject.on_optimizer_step_end()
        subject.on_action_end(Signal.AUTOMATIC_STEP)
        trainer.global_step += 1
        subject.on_batch_end(None)
        subject.on_action_start(Signal.CHECKPOINT)
        subject.on_action_end(Signal.CHECKPOINT)
    subject.finish()
    light = "(fetch, fetch), (checkpoint, checkpoint)"
    full = "(fetch, fetch), (forward, forward), (backward, backward), (optimizer, optimizer), (checkpoint, checkpoint)"
    assert ", ".join(entries) == f"step 0, {light}, end, step 1, {full}, end, step 2, {light}, end"


def test_a_checkpoint_is_noted_for_its_step_alone() -> None:
    loop = Loop()
    loop.fetch()
    loop.train()
    assert not loop.state.checkpoint_saved
    with loop.action(Signal.CHECKPOINT):
        pass
    assert loop.state.checkpoint_saved
    loop.fetch()
    assert not loop.state.checkpoint_saved


def test_the_first_number_is_read_once_the_first_step_starts() -> None:
    loop = Loop()
    loop.trainer.global_step = 7
    loop.fetch()
    loop.train()
    loop.fetch()
    assert (loop.state.first_number, loop.state.step, loop.state.number) == (7, 1, 8)
