"""Change points against planted changes, and their figures against independent computations."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.comparing.history_simulation import KINDS, draw_histories, draw_noise
from lightning_perf.statistics.change_points import FEWEST_VALUES, LEAST_AUTOCORRELATION, find_changes, predict

PER_CELL = 4


def steps(*levels, length=12, sd=0.01, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([level + rng.normal(0, sd, length) for level in levels])


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_histories(kind):
    # As in benchmarks/results/history.md, with fewer histories. Changes of 10 and 20 % are found in every noise.
    found = alarms = inside = 0
    for shift in (0.0, 0.1, 0.2):
        for history in draw_histories(kind, shift, PER_CELL):
            near = []
            for change in find_changes(history.values).changes:
                if history.at is not None and abs(change.position - history.at) <= 3:
                    near.append(change)
                else:
                    alarms += 1
            found += bool(near)
            inside += any(change.low <= history.at <= change.high for change in near)
    assert found >= 2 * PER_CELL - 1
    assert inside >= found - 1
    assert alarms <= 1


def test_no_noise_is_no_change():
    assert find_changes(np.zeros(30)).changes == ()
    assert find_changes(np.array([1.0])).changes == ()


def test_exact_levels_have_an_exact_change():
    series = find_changes(np.repeat([2.0, 3.0], 6))
    (change,) = series.changes
    assert (change.position, change.low, change.high) == (6, 6, 6)
    assert (change.change.value, change.change.low, change.change.high) == (1.0, 1.0, 1.0)
    assert series.equal
    assert series.levels == (2.0, 3.0)


def test_several_changes():
    series = find_changes(steps(0.0, 0.1, 0.05))
    assert [change.position for change in series.changes] == [12, 24]
    assert [series.segment_of(row) for row in (0, 11, 12, 35)] == [0, 0, 1, 2]
    assert [series.length(segment) for segment in range(3)] == [12, 12, 12]
    assert series.changes[0].change.value > 0 > series.changes[1].change.value


def test_a_single_outlier_is_no_change():
    values = steps(0.0, length=30)
    values[15] += 0.3
    assert find_changes(values).changes == ()


def test_short_series_have_none():
    assert find_changes(np.array([0.0] * 2 + [1.0] * (FEWEST_VALUES - 3))).changes == ()


def test_the_interval_is_that_of_the_t_test_with_fewer_independent_values():
    values = steps(0.0, 0.1, length=10)
    series = find_changes(values)
    (change,) = series.changes
    rest = np.concatenate([values[:10] - values[:10].mean(), values[10:] - values[10:].mean()])
    rho = series.noise.autocorrelation
    factor = (1 + rho) / (1 - rho)
    error = math.sqrt((rest**2).sum() / 18 * factor * (1 / 10 + 1 / 10))
    low, high = stats.t.interval(0.95, 18 / factor, loc=values[10:].mean() - values[:10].mean(), scale=error)
    assert (change.change.low, change.change.high) == pytest.approx((low, high))
    assert rho >= LEAST_AUTOCORRELATION


def test_the_place_is_that_of_the_posterior():
    # A second implementation: the likelihood of each position by brute force, with the levels integrated out.
    values = steps(0.0, 0.06, length=10, sd=0.02, seed=4)
    series = find_changes(values)
    (change,) = series.changes
    n, rho = len(values), series.noise.autocorrelation
    weights = {}
    for cut in range(1, n):
        parts = values[:cut], values[cut:]
        squares = sum(((part - part.mean()) ** 2).sum() for part in parts)
        weights[cut] = (cut * (n - cut)) ** -0.5 * squares ** (-(n - 2) / 2 * (1 - rho) / (1 + rho))
    total, kept, covered = sum(weights.values()), [], 0.0
    for cut in sorted(weights, key=lambda cut: -weights[cut]):
        kept.append(cut)
        covered += weights[cut] / total
        if covered >= 0.95:
            break
    assert (change.low, change.high) == (min(kept), max(kept))


def test_autocorrelation_is_found():
    rng = np.random.default_rng(1)
    estimates = [find_changes(draw_noise("autocorrelated", rng, 200)).noise.autocorrelation for _ in range(10)]
    assert np.mean(estimates) == pytest.approx(0.5, abs=0.1)


def test_prediction_covers():
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(300):
        values = draw_noise("shared machine", rng, 16)
        estimate = predict(find_changes(values[:-1]), 0, float(values[-1]), 1.0)
        inside += estimate.low <= 0 <= estimate.high
    assert 0.92 <= inside / 300 <= 1


def test_prediction_needs_noise():
    estimate = predict(find_changes(np.array([1.0])), 0, 2.0, 1.0)
    assert (estimate.value, estimate.low) == (1.0, None)
    assert "too few rows" in estimate.reason
