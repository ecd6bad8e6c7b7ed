"""Where step samples go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.step_log import StepLog
from lightning_perf.callbacks.trainer_log import TrainerLog
from lightning_perf.run_files.steps import STEPS, StepSample
from tests.callbacks.training import context


def sample(step: int, *, ms: int = 10, profiled: bool = False) -> StepSample:
    return StepSample(step, ms * 1_000_000, 1_000_000, None, 4, profiled)


def log_to(folder: Path | None, state: FitState, *, rows: Any = None, every: int = 4) -> StepLog:
    fit = context(folder, state=state, log_every=every)
    return StepLog(fit, rows or TrainerLog(None, fit.errors))


def run(log: StepLog, state: FitState, steps: range, **options: Any) -> None:
    for index in steps:
        state.step = index
        log.on_sample(sample(index, **options))
        log.on_step_end()


def test_everything_added_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.rank0.jsonl"
    state = FitState()
    log = log_to(tmp_path, state)
    run(log, state, range(60))
    assert [s.step for s in STEPS.read(path)] == list(range(50))
    assert len(path.read_bytes().splitlines()) == 1
    log.write()
    assert tuple(STEPS.read(path)) == tuple(sample(step) for step in range(60))


def test_slow_steps_are_written_every_five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps.rank0.jsonl"
    state, now_s = FitState(), [0.0]
    monkeypatch.setattr("lightning_perf.callbacks.steps.step_log.time.monotonic", lambda: now_s[0])
    log = log_to(tmp_path, state)
    for step in range(5):
        now_s[0] += 2.0
        run(log, state, range(step, step + 1))
    assert len(STEPS.read(path)) == 3


class Rows:
    """A `TrainerLog` that notes when it is asked."""

    def __init__(self) -> None:
        self.samples: list[StepSample] = []
        self.settled: list[int] = []

    def add_sample(self, sample: StepSample) -> None:
        self.samples.append(sample)

    def due(self, step: int) -> None:
        self.step = step

    def settle(self) -> None:
        self.settled.append(self.step)


def test_rows_are_due_at_the_cadence() -> None:
    rows: Any = Rows()
    state = FitState(first_number=2)
    log = log_to(None, state, rows=rows)
    run(log, state, range(6))
    log.on_sample(sample(6, profiled=True))
    assert rows.settled == [3, 7]
    assert rows.samples == [sample(step) for step in range(6)], "profiled steps are saved and not logged"
    assert len(log.unsaved()) == 7
