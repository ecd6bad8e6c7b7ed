"""Where step samples go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.step_log import StepLog, step_metrics
from lightning_perf.run_files.steps import STEPS, StepSample


def sample(step: int, *, ms: int = 10, profiled: bool = False) -> StepSample:
    return StepSample(step, ms * 1_000_000, 1_000_000, None, 4, profiled)


def run(log: StepLog, state: FitState, steps: range, **options: Any) -> None:
    for index in steps:
        state.step = index
        log.add(sample(index, **options))
        log.on_step_end()


def test_everything_added_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    state = FitState()
    log = StepLog(state, path=path, send=None, log_every=4, errors=ErrorReporter())
    run(log, state, range(10))
    assert [s.step for s in STEPS.read(path)] == list(range(8)), "writes in between, at the log's cadence"
    log.write()
    assert STEPS.read(path) == tuple(sample(step) for step in range(10))


@pytest.mark.parametrize(("log_every", "written"), [(0, 50), (1000, 50), (7, 56)])
def test_the_file_is_written_now_and_then_whatever_the_cadence(tmp_path: Path, log_every: int, written: int) -> None:
    path = tmp_path / "steps.jsonl"
    state = FitState()
    run(StepLog(state, path=path, send=None, log_every=log_every, errors=ErrorReporter()), state, range(60))
    assert len(STEPS.read(path)) == written


def test_means_are_sent_at_the_cadence(tmp_path: Path) -> None:
    sent: list[tuple[int, float]] = []
    state = FitState(first_number=2)
    log = StepLog(
        state,
        path=None,
        send=lambda metrics, step: sent.append((step, metrics["perf/step_time_ms"])),
        log_every=4,
        errors=ErrorReporter(),
    )
    run(log, state, range(2), ms=10)
    run(log, state, range(2, 6), ms=20)
    assert sent == [(3, 10.0), (7, 20.0)]


def test_profiled_steps_are_saved_and_not_sent(tmp_path: Path) -> None:
    sent: list[dict[str, float]] = []
    path = tmp_path / "steps.jsonl"
    log = StepLog(
        FitState(),
        path=path,
        send=lambda metrics, step: sent.append(metrics),
        log_every=1,
        errors=ErrorReporter(),
    )
    log.add(sample(0, profiled=True))
    log.on_step_end()
    assert sent == []
    assert len(STEPS.read(path)) == 1


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    errors = ErrorReporter()
    sent: list[int] = []
    state = FitState()
    log = StepLog(
        state,
        path=tmp_path / "gone" / "steps.jsonl",
        send=lambda metrics, step: sent.append(step),
        log_every=2,
        errors=errors,
    )
    with pytest.warns(RuntimeWarning, match="step times are no longer saved") as caught:
        run(log, state, range(6))
    assert len(caught) == 1
    assert sent == [1, 3, 5]


def test_metrics() -> None:
    samples = [
        StepSample(0, 10_000_000, 1_000_000, 8_000_000, 4, False),
        StepSample(1, 30_000_000, 3_000_000, None, None, False),
    ]
    assert step_metrics(samples) == {
        "perf/step_time_ms": 20.0,
        "perf/data_wait_ms": 2.0,
        "perf/device_time_ms": 8.0,
        "perf/samples_per_s": pytest.approx(400.0),
    }


def test_a_failing_logger_costs_its_metrics_only(tmp_path: Path) -> None:
    def send(metrics: dict[str, float], step: int) -> None:
        raise ConnectionError("the logger's server is away")

    errors, path = ErrorReporter(), tmp_path / "steps.jsonl"
    state = FitState()
    log = StepLog(state, path=path, send=send, log_every=2, errors=errors)
    with pytest.warns(RuntimeWarning, match="step times are no longer logged.*server is away"):
        run(log, state, range(8))
    assert len(errors.messages) == 1
    assert len(STEPS.read(path)) == 8
