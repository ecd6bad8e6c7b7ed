"""The options of a recording, and the budget of the profiler."""

from __future__ import annotations

import inspect
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from lightning_perf import PerfCallback, PerfLoop
from lightning_perf.callbacks.recording.captures import OverheadBudget
from lightning_perf.callbacks.recording.recording_plan import Recording
from lightning_perf.loop.transformers_callback import PerfTrainerCallback
from lightning_perf.run_files.captures import RecordedWindow
from lightning_perf.run_files.steps import StepSample

MS = 1_000_000


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        *(("ranks", value, ValueError if value == [-1] else TypeError) for value in ([-1], [True], ["0"], "01", 3)),
        *(("max_overhead", value, ValueError) for value in (-0.1, 2, timedelta(-1))),
        *(("max_overhead", value, TypeError) for value in (True, "1")),
    ],
)
def test_bad_ranks_and_budgets_are_refused(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        PerfCallback(**{name: value})


@pytest.mark.parametrize("measure", [PerfCallback, PerfLoop])
def test_the_callback_and_the_loop_refuse_the_same_values(measure: type) -> None:
    with pytest.raises(ValueError, match=r"report='long' is unknown: give one of 'full', 'short', 'none'"):
        measure(report="long")
    with pytest.raises(ValueError, match=r"fingerprint='none' is unknown: give one of 'full', 'light'"):
        measure(fingerprint="none")
    with pytest.raises(ValueError, match="max_overhead=2"):
        measure(max_overhead=2)
    with pytest.raises(ValueError, match="hang_after=0 must be a number of seconds above 0"):
        measure(hang_after=0)
    with pytest.raises(TypeError, match="warmup"):
        measure(warmup=1.5)


@pytest.mark.parametrize("measure", [PerfCallback, PerfLoop, PerfTrainerCallback])
def test_every_signature_has_the_defaults_of_the_recording(measure: type) -> None:
    options = {item.name: item.default for item in fields(Recording)}
    parameters = inspect.signature(measure).parameters
    shared = {name: parameter.default for name, parameter in parameters.items() if name in options}
    assert shared == {name: options[name] for name in shared}
    if measure is not PerfTrainerCallback:
        assert set(shared) == set(options)


def test_the_options_of_a_constructor_are_taken_from_its_arguments() -> None:
    recording = Recording.given({"self": object(), "active": 7, "ranks": [1], "report": "none"})
    assert recording == Recording(active=7, ranks=[1])
    assert (recording.schedule.active, recording.schedule.skip_first, recording.ranks) == (7, 10, frozenset({1}))
    assert recording.open_fields == {"skip_first", "wait", "warmup"}


class Run:
    """A training of 20 steps of 10 ms, five profiled ones of 14 ms, and a pause of 30 ms for the window."""

    def __init__(self, limit: float | timedelta) -> None:
        self.now_ns = 0
        self.budget = OverheadBudget(limit, now_ns=lambda: self.now_ns)
        assert self.budget.allows(), "without a window nothing is known"
        self.steps(20, 10)
        self.steps(5, 14, profiled=True)
        self.now_ns += 30 * MS
        self.budget.on_window(RecordedWindow("", 20, 24, 5, 20 * MS, 10 * MS, 1))

    def steps(self, number: int, time_ms: int, *, profiled: bool = False) -> None:
        for _ in range(number):
            self.now_ns += time_ms * MS
            self.budget.on_sample(StepSample(0, time_ms * MS, 0, None, None, profiled))


def test_a_share_is_won_back_by_training_on() -> None:
    run = Run(0.05)
    assert run.budget.cost_ns == (5 * 4 + 30) * MS, "the pauses and the excess of profiled steps"
    assert not run.budget.allows()  # a further window is expected to make it 100 ms, which is 5 % of 2 s
    run.steps(169, 10)
    assert not run.budget.allows()
    run.steps(4, 10)
    assert run.budget.allows()


def test_a_time_is_not() -> None:
    run = Run(timedelta(milliseconds=90))
    run.steps(10_000, 10)
    assert not run.budget.allows()
