from itertools import product

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.distributions import rank_sum_counts, signed_rank_counts
from lightning_perf.statistics.ranks import hodges_lehmann_shift, walsh_interval

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_signed_rank_counts_by_enumeration(n):
    sums = [sum(rank for rank, sign in enumerate(signs, 1) if sign) for signs in product((0, 1), repeat=n)]
    assert signed_rank_counts(n).tolist() == np.bincount(sums, minlength=n * (n + 1) // 2 + 1).tolist()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 4), (5, 5), (6, 2)])
def test_rank_sum_counts_by_scipys_exact_p_values(n, m):
    counts = rank_sum_counts(n, m)
    for u in range(n * m + 1):
        # Values that give U = u for the first sample.
        order = _assignment_with_u(n, m, u)
        result = stats.mannwhitneyu(order[0], order[1], method="exact", alternative="less")
        assert result.statistic == u
        assert counts[: u + 1].sum() / counts.sum() == pytest.approx(result.pvalue)


def _assignment_with_u(n, m, u):
    # Each first-sample value beats a number of second-sample values: split u into n parts of at most m, ascending.
    parts = [min(m, max(0, u - m * k)) for k in range(n)]
    second = np.arange(1, m + 1, dtype=float)
    first = np.array([part + 0.5 + 0.01 * row for row, part in enumerate(sorted(parts))])
    return first, second


@pytest.mark.parametrize("n", [6, 7, 10, 15])
def test_walsh_interval_holds_the_shifts_that_wilcoxon_does_not_reject(n):
    d = RNG.normal(0.5, 1, n)
    estimate = walsh_interval(d)
    inside = np.linspace(estimate.low, estimate.high, 9)[1:-1]
    for shift in inside:
        assert stats.wilcoxon(d - shift, method="exact").pvalue > 1 - estimate.confidence
    for shift in (estimate.low - 1e-6, estimate.high + 1e-6):
        assert stats.wilcoxon(d - shift, method="exact").pvalue <= 1 - estimate.confidence + 1e-12
    assert estimate.confidence >= 0.95
    averages = [(d[i] + d[j]) / 2 for i in range(n) for j in range(i, n)]
    assert estimate.value == pytest.approx(np.median(averages))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 5), (6, 9)])
def test_shift_interval_holds_the_shifts_that_the_rank_sum_test_does_not_reject(n, m):
    a, b = RNG.normal(0, 1, n), RNG.normal(1, 1, m)
    estimate = hodges_lehmann_shift(a, b)
    for shift in np.linspace(estimate.low, estimate.high, 9)[1:-1]:
        assert stats.mannwhitneyu(b - shift, a, method="exact").pvalue > 1 - estimate.confidence
    for shift in (estimate.low - 1e-6, estimate.high + 1e-6):
        assert stats.mannwhitneyu(b - shift, a, method="exact").pvalue <= 1 - estimate.confidence + 1e-12
    assert estimate.value == pytest.approx(np.median([y - x for x in a for y in b]))


def test_too_few_runs_have_a_value_and_no_interval():
    estimate = walsh_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (estimate.value, estimate.low, estimate.high) == (3.0, None, None)
    assert "too few runs" in estimate.reason
    assert hodges_lehmann_shift([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]).low is None


@pytest.mark.parametrize("values", [[], [None, float("nan")]])
def test_no_values_no_estimate(values):
    assert walsh_interval(values).value is None
    assert hodges_lehmann_shift(values, [1.0]).value is None


def test_more_runs_than_the_exact_distribution_holds_say_so():
    assert "t interval" in walsh_interval(np.arange(51.0)).reason
    assert "t interval" in hodges_lehmann_shift(np.arange(40.0), np.arange(40.0)).reason
    assert walsh_interval(np.arange(50.0)).low is not None
    assert hodges_lehmann_shift(np.arange(25.0), np.arange(25.0)).low is not None
