import math

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.spread import measure_drift

RNG = np.random.default_rng(6)


def test_drift_of_one_arm_is_scipys_regression():
    values = RNG.lognormal(1, 0.02, 10) * 1.01 ** np.arange(10)
    drift = measure_drift(values, ["a"] * 10)
    line = stats.linregress(np.arange(10), np.log(values))
    reach = stats.t.ppf(0.975, 8) * line.stderr
    assert drift.p == pytest.approx(line.pvalue)
    assert drift.change.value == pytest.approx(math.exp(9 * line.slope) - 1)
    assert drift.change.low == pytest.approx(math.exp(9 * (line.slope - reach)) - 1)
    assert drift.change.high == pytest.approx(math.exp(9 * (line.slope + reach)) - 1)


def test_two_arms_against_least_squares_with_a_column_for_each():
    arms = ["a", "b", "b", "a", "a", "b", "b", "a"]
    values = np.where(np.array(arms) == "a", 10.0, 4.0) * np.exp(RNG.normal(0, 0.01, 8) + 0.01 * np.arange(8))
    design = np.column_stack([np.arange(8), [arm == "a" for arm in arms], [arm == "b" for arm in arms]]).astype(float)
    solution, left, *_ = np.linalg.lstsq(design, np.log(values), rcond=None)
    error = math.sqrt(left[0] / 5 * np.linalg.inv(design.T @ design)[0, 0])
    drift = measure_drift(values, arms)
    assert drift.change.value == pytest.approx(math.exp(7 * solution[0]) - 1)
    assert drift.p == pytest.approx(2 * stats.t.sf(abs(solution[0]) / error, 5))


def test_blocked_runs_are_judged_by_their_blocks_means():
    arms = ["a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]
    levels = np.repeat(RNG.normal(0, 0.05, 5), 2)
    values = np.where(np.array(arms) == "a", 10.0, 4.0) * np.exp(levels + RNG.normal(0, 0.001, 10))
    drift = measure_drift(values, arms, blocks=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    logs = np.log(values)
    for arm in "ab":
        logs[np.array(arms) == arm] -= logs[np.array(arms) == arm].mean()
    assert drift.p == pytest.approx(stats.linregress(np.arange(5), logs.reshape(5, 2).mean(axis=1)).pvalue, rel=0.05)


def test_residuals_keep_the_order_and_the_gaps():
    drift = measure_drift([10.0, None, 20.0, 10.0, float("nan"), 20.0], ["a", "a", "b", "a", "b", "b"])
    assert drift.residuals == (0.0, None, 0.0, 0.0, None, 0.0)
    assert drift.p is None
    assert "equal" in drift.change.reason


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [None, None, None]])
def test_too_few_runs_tell_no_drift(values):
    drift = measure_drift(values, ["a"] * len(values))
    assert drift.change.value is None
    assert "too few" in drift.change.reason
