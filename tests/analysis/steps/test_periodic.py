from __future__ import annotations

import numpy as np
import pytest

from lightning_perf.analysis.steps import step_times
from lightning_perf.analysis.steps.step_times import PeriodicSteps

MS = 1_000_000


def times(count: int, period: int, extra_ms: int, *, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    base = 100 * MS * (1 + noise * random.random(count))
    return (base + np.where(np.arange(count) % period == 0, extra_ms * MS, 0)).astype(np.int64)


def find_period(number: np.ndarray, step_ns: np.ndarray) -> PeriodicSteps | None:
    return step_times.find_period(number, step_ns, step_ns // 2)


@pytest.mark.parametrize("period", [2, 3, 7, 10, 50])
def test_a_period_is_found_among_noise(period: int) -> None:
    found = find_period(np.arange(400), times(400, period, 200, noise=0.1))
    assert found is not None
    assert found.period == period
    assert found.steps == -(-400 // period)
    assert found.per_step_ns == pytest.approx(200 * MS / period, rel=0.05)


def test_missing_steps_do_not_hide_it() -> None:
    number = np.delete(np.arange(200), np.arange(50, 57))
    found = find_period(number, times(200, 10, 300)[number])
    assert found == PeriodicSteps(10, 19, 400 * MS, 100 * MS, 150 * MS)


@pytest.mark.parametrize("seed", range(20))
def test_random_long_steps_have_no_period(seed: int) -> None:
    random = np.random.default_rng(seed)
    step_ns = np.where(random.random(500) < 0.05, 400 * MS, 100 * MS) + random.integers(0, 5 * MS, 500)
    assert find_period(np.arange(500), step_ns) is None


def test_few_long_steps_and_small_excesses_have_none() -> None:
    assert find_period(np.arange(30), times(30, 10, 300)) is None
    assert find_period(np.arange(200), times(200, 10, 20)) is None
    assert find_period(np.arange(0), np.array([], dtype=np.int64)) is None
    assert find_period(np.arange(200), times(200, 1, 300)) is None
