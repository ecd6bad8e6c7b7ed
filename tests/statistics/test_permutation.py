from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.exact import sign_flip_test, two_sample_test

RNG = np.random.default_rng(2)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9])
def test_sign_flips_against_trying_every_pattern(n):
    d = RNG.normal(0.4, 1, n).round(1) + 0.05
    extreme = sum(abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in product((-1, 1), repeat=n))
    assert sign_flip_test(d).p == extreme / 2**n


@pytest.mark.parametrize("n", [5, 7])
def test_sign_flips_against_scipy(n):
    d = RNG.normal(0.3, 1, n)
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
    a, b = RNG.normal(0, 1, n).round(1), RNG.normal(0.5, 1, m).round(1)
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
    d = RNG.normal(3, 1, 30)
    assert 0 < sign_flip_test(d).p < 1e-4
    assert "draws" in sign_flip_test(d).method
    assert 0 < two_sample_test(RNG.normal(0, 1, 20), RNG.normal(9, 1, 20)).p < 1e-4


def test_drawn_p_values_agree_with_the_t_test_for_normal_values():
    d = RNG.normal(0.3, 1, 24)
    assert sign_flip_test(d).p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.02)
    a, b = RNG.normal(0, 1, 25), RNG.normal(0.4, 1, 25)
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
