"""The tracker on sequences of events as the training loop sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from lightning_perf.callbacks.steps.fit_state import FitState, Phase, Signal, StepObserver
from lightning_perf.callbacks.steps.step_tracker import UNSEEN_BATCHES, StepTracker


class Diary(StepObserver):
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


@dataclass
class Counter:
    global_step: int = 0
    automatic: bool = True

    def step_number(self) -> int:
        return self.global_step


class Loop:
    """A training loop that says what Lightning's would."""

    def __init__(self) -> None:
        # Phases are followed while the profiler records.
        self.state = FitState(recording=True)
        self.diary = Diary(self.state)
        self.trainer = Counter()
        self.tracker = StepTracker(self.state, self.trainer, [self.diary])

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

    def entries(self, *, phases: bool = False) -> str:
        kept = [e for e in self.diary.entries if phases or ("(" not in e and ")" not in e)]
        return ", ".join(kept)


def test_a_step_lasts_until_the_next_fetch() -> None:
    loop = Loop()
    for _ in range(2):
        loop.fetch()
        loop.train()
    assert loop.entries(phases=True) == "step 0, (fetch, fetch), end, step 1, (fetch, fetch)"
    loop.tracker.on_action_end(Signal.EPOCH)
    assert loop.entries().endswith("step 1, end, pause")
    assert loop.state.whole_steps == 2


def test_a_step_holds_all_its_micro_batches() -> None:
    loop = Loop()
    for steps in (0, 0, 1, 0, 1):  # the last group of an epoch is short
        loop.fetch()
        loop.train(optimizer_steps=steps)
    loop.tracker.on_action_end(Signal.EPOCH)
    assert loop.entries() == "step 0, end, step 1, end, pause"


@pytest.mark.parametrize("optimizer_steps", [2, 0], ids=["several optimizers", "none that the trainer can see"])
def test_a_batch_of_manual_optimization_is_a_step(optimizer_steps: int) -> None:
    loop = Loop()
    for _ in range(3):
        loop.fetch()
        loop.tracker.on_optimizer_step_end()
        loop.train(optimizer_steps=optimizer_steps, automatic=False)
    assert loop.entries() == "step 0, end, step 1, end, step 2"


def test_manual_accumulation_makes_steps_of_several_batches() -> None:
    loop = Loop()
    for steps in (1, 0, 1, 0, 1):
        loop.fetch()
        loop.train(optimizer_steps=steps, automatic=False)
    loop.tracker.on_action_end(Signal.EPOCH)
    assert loop.entries() == "step 0, end, step 1, end, step 2, end, pause"


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


def test_a_prefetched_first_batch_belongs_to_the_first_step() -> None:
    loop = Loop()
    loop.fetch()
    loop.fetch()
    loop.train()
    assert loop.entries(phases=True) == "step 0, (fetch, fetch), (fetch, fetch)"


def test_a_fetch_that_finds_no_batch_is_no_step() -> None:
    loop = Loop()
    loop.fetch()
    loop.train()
    loop.fetch()
    loop.tracker.on_action_end(Signal.EPOCH)
    assert loop.entries() == "step 0, end, step 1, dropped, pause"
    assert loop.state.whole_steps == 1
    loop.fetch()
    assert loop.entries().endswith("pause, step 1")


def test_a_module_that_fetches_for_itself() -> None:
    loop = Loop()
    for _ in range(2):
        loop.tracker.on_batch_start(None, 0)
        loop.fetch()
        loop.trainer.global_step += 1
        loop.tracker.on_batch_end(None)
    assert loop.entries(phases=True) == "step 0, (fetch, fetch), end, step 1, (fetch, fetch)"


def test_validation_ends_a_whole_step_and_interrupts_another() -> None:
    loop = Loop()
    loop.fetch()
    loop.train(optimizer_steps=1)
    for _ in range(3):
        loop.tracker.on_action_start(Signal.VALIDATION)
    assert loop.entries() == "step 0, end, pause"
    with loop.action(Signal.TRANSFER):  # validation's own batches
        pass
    loop.fetch()
    loop.train(optimizer_steps=0)
    loop.tracker.on_action_start(Signal.VALIDATION)
    loop.fetch()
    loop.train(optimizer_steps=1)
    loop.fetch()
    assert loop.entries(phases=True) == (
        "step 0, (fetch, fetch), end, pause, step 1, (fetch, fetch), pause, resume, (fetch, fetch), end, "
        "step 2, (fetch, fetch)"
    )


def test_phases_of_automatic_optimization() -> None:
    loop = Loop()
    loop.tracker.on_batch_start(None, 0)
    with loop.action(Signal.AUTOMATIC_STEP):
        for _ in range(2):  # an optimizer may evaluate its closure again
            with loop.action(Signal.FORWARD):
                pass
            loop.backward()
            loop.tracker.on_before_optimizer_step(None)
    assert loop.entries(phases=True) == (
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
    assert loop.entries(phases=True) == (
        "step 0, (forward, forward), (backward, backward), (forward, forward), (optimizer, optimizer), "
        "(forward, forward)"
    )


def test_a_failure_drops_the_step_with_its_phases_closed() -> None:
    loop = Loop()
    loop.fetch()
    loop.tracker.on_batch_start(None, 0)
    loop.tracker.on_action_start(Signal.FORWARD)
    loop.tracker.finish()
    assert loop.entries(phases=True) == "step 0, (fetch, fetch), (forward, forward), dropped"
    loop.tracker.finish()
    assert loop.state.whole_steps == 0


def test_calls_have_the_order_given_at_a_start_and_the_reverse_at_an_end() -> None:
    entries: list[str] = []
    state = FitState(recording=True)
    a, b = Diary(state, "a ", entries), Diary(state, "b ", entries)
    tracker = StepTracker(state, Counter(automatic=False), [a, b])
    tracker.on_batch_start(None, 0)
    tracker.on_optimizer_step_end()
    tracker.on_batch_end(None)
    tracker.finish()
    assert entries == ["a step 0", "b step 0", "b end", "a end"]
    entries.clear()
    tracker.on_action_start(Signal.FETCH)
    tracker.on_action_end(Signal.FETCH)
    assert entries == ["a step 1", "b step 1", "a (fetch", "b (fetch", "b fetch)", "a fetch)"]


def test_phases_are_followed_only_while_the_profiler_records() -> None:
    class Recorder(StepObserver):
        def on_step_start(self) -> None:
            state.recording = state.step == 1

    entries: list[str] = []
    state, trainer = FitState(), Counter()
    timer = Diary(state, "", entries)
    tracker = StepTracker(state, trainer, [Recorder(), timer])
    for _ in range(3):
        tracker.on_action_start(Signal.FETCH)
        tracker.on_action_end(Signal.FETCH)
        tracker.on_batch_start(None, 0)
        tracker.on_action_start(Signal.AUTOMATIC_STEP)
        tracker.on_optimizer_step_start()
        tracker.on_action_start(Signal.FORWARD)
        tracker.on_action_end(Signal.FORWARD)
        tracker.on_before_backward(None)
        tracker.on_after_backward()
        tracker.on_before_optimizer_step(None)
        tracker.on_optimizer_step_end()
        tracker.on_action_end(Signal.AUTOMATIC_STEP)
        trainer.global_step += 1
        tracker.on_batch_end(None)
        tracker.on_action_start(Signal.CHECKPOINT)
        tracker.on_action_end(Signal.CHECKPOINT)
    tracker.finish()
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
