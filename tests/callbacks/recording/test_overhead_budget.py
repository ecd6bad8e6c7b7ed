from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lightning_perf import PerfCallback
from lightning_perf.callbacks.recording.overhead_budget import OverheadBudget, check_budget
from lightning_perf.callbacks.steps.fit_state import FitState

MS = 1_000_000


class Run:
    def __init__(self, limit: float | timedelta) -> None:
        self.now_ns = 0
        self.state = FitState()
        self.budget = OverheadBudget(limit, self.state, now_ns=lambda: self.now_ns)

    def steps(self, number: int, time_ms: int, *, profiling: bool = False) -> None:
        self.state.profiling = profiling
        for _ in range(number):
            self.budget.on_step_start()
            self.now_ns += time_ms * MS
            self.budget.on_step_end()

    def window(self, pause_ms: int) -> None:
        self.now_ns += pause_ms * MS
        self.budget.window_ends(pause_ms * MS)


def test_the_cost_is_the_pauses_and_the_excess_of_profiled_steps() -> None:
    run = Run(0.1)
    run.steps(20, 10)
    run.steps(5, 14, profiling=True)
    run.window(30)
    assert run.budget.cost_ns == (5 * 4 + 30) * MS


def test_a_share_is_won_back_by_training_on() -> None:
    run = Run(0.05)
    assert run.budget.allows()
    run.steps(20, 10)
    run.steps(5, 14, profiling=True)
    run.window(30)  # 50 ms: a further window is expected to make it 100 ms, which is 5 % of 2 s
    assert not run.budget.allows()
    run.steps(169, 10)
    assert not run.budget.allows()
    run.steps(4, 10)
    assert run.budget.allows()
    assert run.budget.refused == 2


def test_a_time_is_not() -> None:
    run = Run(timedelta(milliseconds=90))
    run.steps(20, 10)
    run.steps(5, 14, profiling=True)
    run.window(30)
    run.steps(10_000, 10)
    assert not run.budget.allows()
    assert run.budget.refused == 1


def test_an_interrupted_step_counts_for_nothing() -> None:
    run = Run(0.1)
    run.steps(3, 10)
    run.state.profiling = True
    run.budget.on_step_start()
    run.now_ns += 5000 * MS
    run.budget.on_training_pause()
    run.budget.on_step_end()
    assert run.budget.cost_ns == 0


@pytest.mark.parametrize(
    ("limit", "error"),
    [(-0.1, ValueError), (2, ValueError), (timedelta(-1), ValueError), (True, TypeError), ("1", TypeError)],
)
def test_bad_limits_are_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_overhead"):
        check_budget(limit)
    with pytest.raises(error, match="max_overhead"):
        PerfCallback(max_overhead=limit)


def test_good_limits_are_not() -> None:
    for limit in (None, 0, 0.02, 1, timedelta(seconds=30)):
        check_budget(limit)
