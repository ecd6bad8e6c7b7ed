"""The tracker on sequences of events as the training loop sends them."""

from __future__ import annotations

from lightning_perf.callbacks.steps.phases import Phase, Signal
from lightning_perf.callbacks.steps.step_tracker import StepObserver, StepTracker


class Diary(StepObserver):
    def __init__(self, name: str = "", entries: list[str] | None = None) -> None:
        self.name = name
        self.entries: list[str] = [] if entries is None else entries

    def note(self, entry: str) -> None:
        self.entries.append(self.name + entry)

    def step_begins(self, index: int) -> None:
        self.note(f"step {index}")

    def step_ends(self) -> None:
        self.note("end")

    def step_dropped(self) -> None:
        self.note("dropped")

    def training_pauses(self) -> None:
        self.note("pause")

    def training_resumes(self) -> None:
        self.note("resume")

    def phase_begins(self, phase: Phase) -> None:
        self.note(f"({phase.name.lower()}")

    def phase_ends(self, phase: Phase) -> None:
        self.note(f"{phase.name.lower()})")


class Loop:
    """A training loop that says what Lightning's would."""

    def __init__(self) -> None:
        self.diary = Diary()
        self.optimizer_steps = 0
        self.tracker = StepTracker(lambda: self.optimizer_steps, self.diary)

    def fetch(self) -> None:
        self.tracker.starts(Signal.FETCH)
        self.tracker.stops(Signal.FETCH)

    def train(self, *, optimizer_steps: int = 1, automatic: bool = True) -> None:
        self.tracker.batch_begins()
        self.optimizer_steps += optimizer_steps
        self.tracker.batch_ends(automatic=automatic)

    def entries(self, *, phases: bool = False) -> str:
        kept = [e for e in self.diary.entries if phases or ("(" not in e and ")" not in e)]
        return ", ".join(kept)


def test_a_step_lasts_until_the_next_fetch() -> None:
    loop = Loop()
    for _ in range(2):
        loop.fetch()
        loop.train()
    assert loop.entries(phases=True) == "step 0, (fetch, fetch), end, step 1, (fetch, fetch)"
    loop.tracker.stops(Signal.EPOCH)
    assert loop.entries().endswith("step 1, end, pause")
    assert loop.tracker.steps == 2


def test_a_step_holds_all_its_micro_batches() -> None:
    loop = Loop()
    for steps in (0, 0, 1, 0, 1):  # the last group of an epoch is short
        loop.fetch()
        loop.train(optimizer_steps=steps)
    loop.tracker.stops(Signal.EPOCH)
    assert loop.entries() == "step 0, end, step 1, end, pause"


def test_several_optimizers_make_one_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.fetch()
        loop.train(optimizer_steps=2, automatic=False)
    assert loop.entries() == "step 0, end, step 1, end, step 2"


def test_manual_optimization_that_the_trainer_cannot_see_counts_batches() -> None:
    loop = Loop()
    for _ in range(3):
        loop.fetch()
        loop.train(optimizer_steps=0, automatic=False)
    assert loop.entries() == "step 0, end, step 1, end, step 2"


def test_manual_accumulation_makes_steps_of_several_batches() -> None:
    loop = Loop()
    for steps in (1, 0, 1, 0, 1):
        loop.fetch()
        loop.train(optimizer_steps=steps, automatic=False)
    loop.tracker.stops(Signal.EPOCH)
    assert loop.entries() == "step 0, end, step 1, end, step 2, end, pause"


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
    loop.tracker.stops(Signal.EPOCH)
    assert loop.entries() == "step 0, end, step 1, dropped, pause"
    assert loop.tracker.steps == 1
    loop.fetch()
    assert loop.entries().endswith("pause, step 1")


def test_a_module_that_fetches_for_itself() -> None:
    loop = Loop()
    for _ in range(2):
        loop.tracker.batch_begins()
        loop.fetch()
        loop.optimizer_steps += 1
        loop.tracker.batch_ends(automatic=True)
    assert loop.entries(phases=True) == "step 0, (fetch, fetch), end, step 1, (fetch, fetch)"


def test_validation_ends_a_whole_step_and_interrupts_another() -> None:
    loop = Loop()
    loop.fetch()
    loop.train(optimizer_steps=1)
    for _ in range(3):
        loop.tracker.starts(Signal.VALIDATION)
    assert loop.entries() == "step 0, end, pause"
    loop.tracker.starts(Signal.TRANSFER)  # validation's own batches
    loop.tracker.stops(Signal.TRANSFER)
    loop.fetch()
    loop.train(optimizer_steps=0)
    loop.tracker.starts(Signal.VALIDATION)
    loop.fetch()
    loop.train(optimizer_steps=1)
    loop.fetch()
    assert loop.entries(phases=True) == (
        "step 0, (fetch, fetch), end, pause, step 1, (fetch, fetch), pause, resume, (fetch, fetch), end, "
        "step 2, (fetch, fetch)"
    )


def test_phases_of_automatic_optimization() -> None:
    loop = Loop()
    tracker = loop.tracker
    tracker.batch_begins()
    tracker.starts(Signal.AUTOMATIC_STEP)
    for _ in range(2):  # an optimizer may evaluate its closure again
        tracker.starts(Signal.FORWARD)
        tracker.stops(Signal.FORWARD)
        tracker.backward_begins()
        tracker.backward_ends()
        tracker.optimizer_begins()
    tracker.stops(Signal.AUTOMATIC_STEP)
    assert loop.entries(phases=True) == (
        "step 0, (forward, forward), (backward, backward), (optimizer, optimizer), (forward, forward), (optimizer, "
        "optimizer), (backward, backward), (optimizer, optimizer)"
    )


def test_nested_phases_are_told_one_after_the_other() -> None:
    loop = Loop()
    tracker = loop.tracker
    tracker.batch_begins()
    tracker.starts(Signal.FORWARD)
    tracker.backward_begins()
    tracker.backward_ends()
    tracker.starts(Signal.MANUAL_STEP)
    tracker.optimizer_begins()
    tracker.stops(Signal.MANUAL_STEP)
    tracker.stops(Signal.FORWARD)
    assert loop.entries(phases=True) == (
        "step 0, (forward, forward), (backward, backward), (forward, forward), (optimizer, optimizer), "
        "(forward, forward)"
    )


def test_a_failure_drops_the_step_with_its_phases_closed() -> None:
    loop = Loop()
    loop.fetch()
    loop.tracker.batch_begins()
    loop.tracker.starts(Signal.FORWARD)
    loop.tracker.ends()
    assert loop.entries(phases=True) == "step 0, (fetch, fetch), (forward, forward), dropped"
    loop.tracker.ends()
    assert loop.tracker.steps == 0


def test_observers_are_told_of_ends_in_reverse() -> None:
    entries: list[str] = []
    tracker = StepTracker(lambda: 0, Diary("a ", entries), Diary("b ", entries))
    tracker.batch_begins()
    tracker.batch_ends(automatic=False)
    tracker.ends()
    assert entries == ["a step 0", "b step 0", "b end", "a end"]


def test_phases_are_told_only_while_somebody_follows_them() -> None:
    class Timer(Diary):
        follows_phases = False

    class Recorder(Diary):
        follows_phases = False

        def step_begins(self, index: int) -> None:
            super().step_begins(index)
            self.follows_phases = index == 1

    entries: list[str] = []
    optimizer_steps = 0
    tracker = StepTracker(lambda: optimizer_steps, Timer("", entries), Recorder("recorder ", []))
    for _ in range(3):
        tracker.starts(Signal.FETCH)
        tracker.stops(Signal.FETCH)
        tracker.batch_begins()
        tracker.starts(Signal.AUTOMATIC_STEP)
        tracker.optimizer_enters()
        tracker.starts(Signal.FORWARD)
        tracker.stops(Signal.FORWARD)
        tracker.backward_begins()
        tracker.backward_ends()
        tracker.optimizer_begins()
        tracker.optimizer_leaves()
        tracker.stops(Signal.AUTOMATIC_STEP)
        optimizer_steps += 1
        tracker.batch_ends(automatic=True)
        tracker.starts(Signal.CHECKPOINT)
        tracker.stops(Signal.CHECKPOINT)
    tracker.ends()
    light = "(fetch, fetch), (checkpoint, checkpoint)"
    full = "(fetch, fetch), (forward, forward), (backward, backward), (optimizer, optimizer), (checkpoint, checkpoint)"
    assert ", ".join(entries) == f"step 0, {light}, end, step 1, {full}, end, step 2, {light}, end"
