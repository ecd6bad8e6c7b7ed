from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.exact import (
    hodges_lehmann_ratio,
    hodges_lehmann_shift,
    rank_sum_counts,
    sign_flip_test,
    signed_rank_counts,
    two_sample_test,
    walsh_interval,
    walsh_ratio,
)

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


def test_walsh_ratio_is_that_of_scipys_signed_rank_test():
    rng = np.random.default_rng(0)
    base = rng.lognormal(0, 0.05, 8)
    candidate = 0.9 * rng.lognormal(0, 0.05, 8)
    ratio = walsh_ratio(base, candidate)
    logs = np.log(candidate / base)
    for end, inside in ((ratio.low, 1.0001), (ratio.high, 0.9999)):
        assert stats.wilcoxon(logs - np.log(end * inside), method="exact").pvalue > 0.05 - 1e-9
        assert stats.wilcoxon(logs - np.log(end / inside), method="exact").pvalue <= 0.05


def test_one_disturbed_pair_does_not_move_the_walsh_ratio():
    base = [1.0, 1.01, 0.99, 1.02, 1.0, 0.98, 1.01, 1.0, 1.03, 0.97, 1.0, 0.99]
    candidate = [0.9 * value for value in base]
    candidate[3] *= 4
    ratio = walsh_ratio(base, [value * (1 + 0.001 * n) for n, value in enumerate(candidate)])
    assert ratio.high < 1
    assert ratio.value == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(("n", "m", "factor"), [(50, 50, 1.0), (20, 50, 1.1), (8, 12, 0.7)])
def test_ratio_interval_holds_the_ratios_that_the_rank_sum_test_does_not_reject(n, m, factor):
    rng = np.random.default_rng(n)
    before = rng.lognormal(16, 0.1, m).astype(int)
    after = (rng.lognormal(16, 0.1, n) * factor).astype(int)
    ratio = hodges_lehmann_ratio(before.tolist(), after.tolist())
    assert ratio is not None

    def p_value(r):
        return float(stats.mannwhitneyu(after, before * r, method="asymptotic", use_continuity=False).pvalue)

    # The test is decided between two quotients: those are the last that it rejects or the first that it does not.
    quotients = np.sort(np.divide.outer(after.astype(float), before.astype(float)), axis=None)
    low, high = np.searchsorted(quotients, [ratio.low, ratio.high])
    inside = np.linspace(quotients[low + 1] * (1 + 1e-9), quotients[high - 1] * (1 - 1e-9), 200)
    assert min(map(p_value, inside)) >= 0.05
    assert p_value(quotients[low] * (1 - 1e-9)) < 0.05
    assert p_value(quotients[high] * (1 + 1e-9)) < 0.05
    assert ratio.estimate == pytest.approx(np.median(quotients))


def test_ratio_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        before, after = rng.lognormal(16, 0.2, 25), rng.lognormal(16, 0.2, 20) * 1.05
        ratio = hodges_lehmann_ratio(before.astype(int).tolist(), after.astype(int).tolist())
        assert ratio is not None
        hits += ratio.low <= 1.05 <= ratio.high
    assert 0.92 * 400 <= hits <= 0.98 * 400  # 95 % with a standard error of 1.1 %


@pytest.mark.parametrize(("n", "m"), [(0, 50), (50, 0), (2, 2), (3, 3)])
def test_too_few_times_give_no_interval(n, m):
    assert hodges_lehmann_ratio([100] * m, [100] * n) is None


DRAWS_RNG = np.random.default_rng(2)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9])
def test_sign_flips_against_trying_every_pattern(n):
    d = DRAWS_RNG.normal(0.4, 1, n).round(1) + 0.05
    extreme = sum(abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in product((-1, 1), repeat=n))
    assert sign_flip_test(d).p == extreme / 2**n


@pytest.mark.parametrize("n", [5, 7])
def test_sign_flips_against_scipy(n):
    d = DRAWS_RNG.normal(0.3, 1, n)
    theirs = stats.permutation_test(
        (d,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", vectorized=True, n_resamples=np.inf
    )
    assert sign_flip_test(d).p == pytest.approx(theirs.pvalue)


def test_five_blocks_cannot_reach_five_percent_and_six_can():
    assert sign_flip_test([1.0, 1.1, 1.2, 0.9, 1.0]).p == 0.0625
    assert sign_flip_test([1.0, 1.1, 1.2, 0.9, 1.0]).smallest == 0.0625
    assert sign_flip_test([1.0, 1.1, 1.2, 0.9, 1.0, 0.8]).p == 0.03125


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 5), (5, 5), (6, 4)])
def test_two_samples_against_trying_every_assignment(n, m):
    a, b = DRAWS_RNG.normal(0, 1, n).round(1), DRAWS_RNG.normal(0.5, 1, m).round(1)
    pooled = np.concatenate([a, b])
    observed = abs(a.mean() - b.mean())
    extreme = 0
    for rows in combinations(range(n + m), n):
        inside = np.isin(np.arange(n + m), rows)
        extreme += abs(pooled[inside].mean() - pooled[~inside].mean()) >= observed - 1e-12
    assert two_sample_test(a, b).p == pytest.approx(extreme / comb(n + m, n))


def test_two_samples_fully_apart_have_the_smallest_p():
    result = two_sample_test([1.0, 1.1, 1.2], [2.0, 2.1, 2.3])
    assert result.p == result.smallest == 2 / comb(6, 3)
    unequal = two_sample_test([1.0, 1.1, 1.2], [2.0, 2.1, 2.3, 2.2])
    assert unequal.p == unequal.smallest == 1 / comb(7, 3)


def test_many_runs_are_drawn_and_never_give_zero():
    d = DRAWS_RNG.normal(3, 1, 30)
    assert 0 < sign_flip_test(d).p < 1e-4
    assert "draws" in sign_flip_test(d).method
    assert 0 < two_sample_test(DRAWS_RNG.normal(0, 1, 20), DRAWS_RNG.normal(9, 1, 20)).p < 1e-4


def test_drawn_p_values_agree_with_the_t_test_for_normal_values():
    d = DRAWS_RNG.normal(0.3, 1, 24)
    assert sign_flip_test(d).p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.02)
    a, b = DRAWS_RNG.normal(0, 1, 25), DRAWS_RNG.normal(0.4, 1, 25)
    assert two_sample_test(a, b).p == pytest.approx(stats.ttest_ind(a, b).pvalue, abs=0.02)


@pytest.mark.parametrize("values", [[], [None], [0.0, 0.0, 0.0]])
def test_nothing_to_flip_is_none_with_a_reason(values):
    result = sign_flip_test(values)
    assert result.p is None
    assert result.reason


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0, 1.0], [1.0]), ([float("nan")], [1.0, 2.0])])
def test_nothing_to_permute_is_none_with_a_reason(a, b):
    result = two_sample_test(a, b)
    assert result.p is None
    assert result.reason


def test_very_many_runs_are_drawn_in_bounded_pieces():
    rng = np.random.default_rng(1)
    base, candidate = rng.normal(0, 1, 6000), rng.normal(0, 1, 6000)
    theirs = stats.ttest_ind(base, candidate).pvalue
    ours = two_sample_test(base, candidate)
    assert ours.method == "permutation, 1,000 draws"
    assert ours.p == pytest.approx(theirs, abs=4 * 0.5 / 1000**0.5)
    paired = sign_flip_test(candidate - base)
    assert paired.p == pytest.approx(stats.ttest_rel(candidate, base).pvalue, abs=4 * 0.5 / 1000**0.5)
