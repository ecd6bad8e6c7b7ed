import math

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.spread import brown_forsythe_p, compare_spread, measure_drift

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (3, 7), (12, 12)])
def test_brown_forsythe_is_scipys_levene_at_the_median(n, m):
    a, b = RNG.normal(0, 1, n), RNG.normal(0, 2, m)
    assert brown_forsythe_p(a, b) == pytest.approx(stats.levene(a, b, center="median").pvalue)


@pytest.mark.parametrize("b", [[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 4.0, 4.0]])
def test_deviations_without_spread_have_no_p_value(b):
    assert brown_forsythe_p(np.array([0.0, 0.0, 2.0, 2.0]), np.array(b)) is None


def test_f_interval_ends_where_the_f_test_stops_rejecting():
    a, b = RNG.normal(0, 1, 8), RNG.normal(0, 2, 6)
    spread = compare_spread(a, b, paired=False)
    for end, tail in ((spread.ratio.low, stats.f.sf), (spread.ratio.high, stats.f.cdf)):
        assert tail(b.var(ddof=1) / a.var(ddof=1) / end**2, 5, 7) == pytest.approx(0.025)
    assert spread.ratio.value == pytest.approx(b.std(ddof=1) / a.std(ddof=1))


def test_paired_interval_ends_where_the_pitman_morgan_test_stops_rejecting():
    shared = RNG.normal(0, 3, 9)
    a, b = shared + RNG.normal(0, 1, 9), shared + RNG.normal(0, 2, 9)
    ratio = compare_spread(a, b, paired=True).ratio
    for end in (ratio.low, ratio.high):
        # Equal variances of a·end and b: sum and difference are uncorrelated; at the ends the test's p is 5 %.
        scaled = a * end
        assert stats.pearsonr(scaled + b, scaled - b).pvalue == pytest.approx(0.05)


def test_eight_fold_spread_of_five_runs_is_nearly_invisible():
    a = np.array([-1.2, -0.4, 0.1, 0.5, 1.0])
    spread = compare_spread(a, 8 * a, paired=False)
    assert spread.ratio.value == pytest.approx(8)
    assert spread.power == pytest.approx(0.29, abs=0.03)
    n = spread.runs_needed
    assert _levene_power(n) > 0.78
    assert _levene_power(n - 1) < 0.82


def _levene_power(n):
    rng = np.random.default_rng(11)
    found = [stats.levene(rng.normal(0, 1, n), rng.normal(0, 8, n), center="median").pvalue < 0.05 for _ in range(1500)]
    return np.mean(found)


def test_nearly_equal_spread_cannot_be_settled():
    a = RNG.normal(0, 1, 6)
    assert compare_spread(a, a[::-1] * 1.01, paired=False).runs_needed is None


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([1.0, 2.0], [1.0, 2.0], "three runs"),
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], "equal"),
        ([0.1 + 0.2, 0.3, 0.3], [1.0, 2.0, 3.0], "equal"),
        ([], [], "three runs"),
        ([1.0], [1.0, 2.0], "three runs"),
    ],
)
def test_degenerate_spread_is_none_with_a_reason(a, b, reason):
    spread = compare_spread(a, b, paired=True)
    assert (spread.ratio.value, spread.p, spread.power, spread.runs_needed) == (None, None, None, None)
    assert reason in spread.reason
    assert compare_spread([1.0, 2.0], [2.0, 4.0, 5.0], paired=False).ratio.value is None


def test_perfectly_correlated_pairs_have_a_sharp_ratio():
    a = np.array([1.0, 2.0, 4.0, 3.0])
    ratio = compare_spread(a, 2 * a, paired=True).ratio
    assert (ratio.low, ratio.high) == pytest.approx((2.0, 2.0), rel=1e-5)


DRIFT_RNG = np.random.default_rng(6)


def test_drift_of_one_arm_is_scipys_regression():
    values = DRIFT_RNG.lognormal(1, 0.02, 10) * 1.01 ** np.arange(10)
    drift = measure_drift(values, ["a"] * 10)
    line = stats.linregress(np.arange(10), np.log(values))
    reach = stats.t.ppf(0.975, 8) * line.stderr
    assert drift.p == pytest.approx(line.pvalue)
    assert drift.change.value == pytest.approx(math.exp(9 * line.slope) - 1)
    assert drift.change.low == pytest.approx(math.exp(9 * (line.slope - reach)) - 1)
    assert drift.change.high == pytest.approx(math.exp(9 * (line.slope + reach)) - 1)


def test_two_arms_against_least_squares_with_a_column_for_each():
    arms = ["a", "b", "b", "a", "a", "b", "b", "a"]
    values = np.where(np.array(arms) == "a", 10.0, 4.0) * np.exp(DRIFT_RNG.normal(0, 0.01, 8) + 0.01 * np.arange(8))
    design = np.column_stack([np.arange(8), [arm == "a" for arm in arms], [arm == "b" for arm in arms]]).astype(float)
    solution, left, *_ = np.linalg.lstsq(design, np.log(values), rcond=None)
    error = math.sqrt(left[0] / 5 * np.linalg.inv(design.T @ design)[0, 0])
    drift = measure_drift(values, arms)
    assert drift.change.value == pytest.approx(math.exp(7 * solution[0]) - 1)
    assert drift.p == pytest.approx(2 * stats.t.sf(abs(solution[0]) / error, 5))


def test_blocked_runs_are_judged_by_their_blocks_means():
    arms = ["a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]
    levels = np.repeat(DRIFT_RNG.normal(0, 0.05, 5), 2)
    values = np.where(np.array(arms) == "a", 10.0, 4.0) * np.exp(levels + DRIFT_RNG.normal(0, 0.001, 10))
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
