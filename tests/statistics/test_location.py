import math

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.location import (
    Kept,
    blocks_needed,
    interval,
    mean_ratio,
    minimal_detectable_effect,
    non_inferiority,
    paired_difference,
    paired_power,
    paired_ratio,
    skewness,
    unpaired_difference,
    unpaired_ratio,
)

RNG = np.random.default_rng(1)
SAMPLES = [(RNG.lognormal(2, 0.1, n), RNG.lognormal(1.9, 0.2, n)) for n in (2, 3, 5, 6, 12)]


@pytest.mark.parametrize(("a", "b"), SAMPLES)
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.975])
def test_paired_ratio_is_scipys_paired_t_on_logarithms(a, b, confidence):
    ours = paired_ratio(a, b, confidence)
    theirs = stats.ttest_rel(np.log(b), np.log(a)).confidence_interval(confidence)
    assert ours.value == pytest.approx(stats.gmean(b / a))
    assert (ours.low, ours.high) == pytest.approx((math.exp(theirs.low), math.exp(theirs.high)))
    assert ours.n == len(a)


@pytest.mark.parametrize(("a", "b"), [(SAMPLES[3][0], SAMPLES[2][1]), (SAMPLES[4][0], SAMPLES[1][1]), *SAMPLES])
def test_unpaired_ratio_is_scipys_welch_on_logarithms(a, b):
    ours = unpaired_ratio(a, b)
    theirs = stats.ttest_ind(np.log(b), np.log(a), equal_var=False).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((math.exp(theirs.low), math.exp(theirs.high)))
    assert ours.value == pytest.approx(stats.gmean(b) / stats.gmean(a))


def test_speed_up_is_the_inverse_with_its_ends_swapped():
    a, b = SAMPLES[3]
    ratio, speed_up = paired_ratio(a, b), paired_ratio(b, a)
    inverse = ratio.map(lambda value: 1 / value)
    assert (inverse.value, inverse.low, inverse.high) == pytest.approx((speed_up.value, speed_up.low, speed_up.high))


def test_a_block_without_a_number_is_left_out_whole():
    a, b = list(SAMPLES[3][0]), list(SAMPLES[3][1])
    with_gaps = paired_difference([*a, None, 5.0, math.nan], [*b, 7.0, math.inf, 1.0])
    assert with_gaps == paired_difference(a, b)


@pytest.mark.parametrize(
    ("base", "candidate", "value", "reason"),
    [
        ([], [], None, "no pair of runs"),
        ([None], [1.0], None, "no pair of runs"),
        ([1.0], [2.0], 2.0, "one pair"),
        ([1.0, 2.0], [1.0], None, "cannot be paired"),
        ([1.0, 2.0, 3.0], [1.1, 2.2, 3.3], 1.1, "differences are equal"),
        ([5.0, 5.0], [5.0, 5.0], 1.0, "differences are equal"),
        ([1.0, 0.0], [1.0, 1.0], None, "zero or negative"),
        ([1.0, 2.0], [-1.0, 1.0], None, "zero or negative"),
    ],
)
def test_degenerate_pairs_have_no_interval_and_say_why(base, candidate, value, reason):
    ratio = paired_ratio(base, candidate)
    assert ratio.value == (None if value is None else pytest.approx(value))
    assert (ratio.low, ratio.high) == (None, None)
    assert reason in ratio.reason


@pytest.mark.parametrize(
    ("base", "candidate", "value"),
    [([1.0, 2.0, 3.0], [1.1, 2.2, 3.3], 1.1), ([5.0, 5.0], [5.0, 5.0], 1.0), ([0.3, 0.7], [0.3, 0.7], 1.0)],
)
def test_equal_paired_ratios_that_are_not_timed_are_their_own_interval(base, candidate, value):
    ratio = paired_ratio(base, candidate, timed=False)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((value, value, value))
    assert (ratio.low, ratio.high) == (ratio.value, ratio.value)


@pytest.mark.parametrize(
    ("base", "candidate", "value", "reason"),
    [
        ([], [1.0, 2.0], None, "no run of the baseline"),
        ([1.0, 2.0], [math.nan], None, "no run of the candidate"),
        ([1.0, 2.0], [4.0], 2.5, "single run"),
    ],
)
def test_degenerate_unpaired_samples_have_no_interval_and_say_why(base, candidate, value, reason):
    estimate = interval(unpaired_difference(base, candidate))
    assert (estimate.value, estimate.low, estimate.high) == (value, None, None)
    assert reason in estimate.reason


def test_equal_runs_without_blocks_are_their_own_interval_unless_they_are_times():
    estimate = interval(unpaired_difference([0.9, 0.9], [0.91, 0.91, 0.91]))
    assert (estimate.low, estimate.high) == (estimate.value, estimate.value)
    assert unpaired_ratio([2.0, 2.0], [3.0, 3.0], timed=False).high == pytest.approx(1.5)
    ratio = unpaired_ratio([2.0, 2.0], [3.0, 3.0])
    assert (ratio.value, ratio.low) == (pytest.approx(1.5), None)
    assert "runs of each arm are equal" in ratio.reason


@pytest.mark.parametrize("paired", [True, False])
def test_the_ratio_of_means_is_within_the_delta_methods_interval(paired):
    a, b = SAMPLES[4]
    ratio = mean_ratio(a, b, paired=paired)
    assert ratio.value == pytest.approx(b.mean() / a.mean())
    theirs = (
        stats.ttest_rel(b / b.mean(), a / a.mean())
        if paired
        else stats.ttest_ind(b / b.mean(), a / a.mean(), equal_var=False)
    ).confidence_interval(0.95)
    log = math.log(ratio.value)
    assert math.log(ratio.high) - log >= theirs.high * (1 - 1e-9)
    if not paired:
        assert (math.log(ratio.low), math.log(ratio.high)) == pytest.approx((log + theirs.low, log + theirs.high))


def test_a_long_tail_widens_only_its_side_of_the_ratio_of_means():
    base = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0, 101.0, 99.0]
    ratio = mean_ratio(base, [*base[:-1], 300.0], paired=True)
    assert math.log(ratio.high / ratio.value) > 1.2 * math.log(ratio.value / ratio.low)
    assert mean_ratio([1.0, 0.0], [1.0, 1.0], paired=True).value is None
    assert mean_ratio([1e308, 1.2e308], [1.5e308, 1.1e308], paired=True).value == pytest.approx(2.6 / 2.2)
    assert mean_ratio([1.0], [2.0], paired=False).reason == "a single run does not tell the spread"


def test_skewness_is_scipys():
    for sample, _ in SAMPLES[1:]:
        assert skewness(sample) == pytest.approx(stats.skew(sample))
    assert skewness(np.ones(4)) == 0.0


def test_one_constant_arm_is_enough_for_welch():
    estimate = interval(unpaired_difference([3.0, 3.0, 3.0], [4.0, 5.0, 4.5]))
    theirs = stats.ttest_1samp([4.0, 5.0, 4.5], 3.0).confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((theirs.low - 3, theirs.high - 3))


def test_an_interval_beyond_floats_has_a_reason_and_no_infinity():
    ratio = paired_ratio([1e-200, 1.0], [1e200, 1.0])
    assert (ratio.low, ratio.high) == (None, None)
    assert "too wide" in ratio.reason


BASE = RNG.normal(0.90, 0.01, 6)


@pytest.mark.parametrize("shift", [0.01, 0.0, -0.008, -0.01, -0.05])
def test_bounds_and_p_are_scipys_one_sided_t(shift):
    candidate = BASE + shift + RNG.normal(0, 0.004, 6)
    result = non_inferiority(paired_difference(BASE, candidate), 0.01)
    d = candidate - BASE
    greater = stats.ttest_1samp(d, -0.01, alternative="greater")
    assert result.p == pytest.approx(greater.pvalue)
    assert result.lower_bound == pytest.approx(greater.confidence_interval(0.95).low - 0)
    assert result.upper_bound == pytest.approx(
        stats.ttest_1samp(d, -0.01, alternative="less").confidence_interval(0.95).high
    )
    assert (result.kept is Kept.KEPT) == (greater.pvalue < 0.05)
    assert (result.kept is Kept.LOST) == (stats.ttest_1samp(d, -0.01, alternative="less").pvalue < 0.05)


def test_unpaired_runs_use_welch():
    candidate = RNG.normal(0.9, 0.02, 8)
    result = non_inferiority(unpaired_difference(BASE, candidate), 0.02)
    theirs = stats.ttest_ind(candidate + 0.02, BASE, equal_var=False, alternative="greater")
    assert result.p == pytest.approx(theirs.pvalue)


def test_unknown_spread_is_undecided_with_its_reason():
    result = non_inferiority(paired_difference([0.5], [0.6]), 0.01)
    assert result.kept is Kept.UNDECIDED
    assert result.p is None
    assert "one pair" in result.reason


@pytest.mark.parametrize("margin", [0.0, -0.01, float("nan"), float("inf")])
def test_margin_must_be_positive(margin):
    with pytest.raises(ValueError, match="positive"):
        non_inferiority(paired_difference([0.5, 0.4], [0.6, 0.6]), margin)


@pytest.mark.parametrize("n", [2, 3, 6, 12, 20])
@pytest.mark.parametrize("effect", [0.2, 1.0, 2.0])
def test_power_is_the_non_central_t(n, effect):
    df, shift, limit = n - 1, effect * np.sqrt(n), stats.t.ppf(0.975, n - 1)
    exact = stats.nct.sf(limit, df, shift) + stats.nct.cdf(-limit, df, shift)
    assert paired_power(effect, n) == pytest.approx(exact, abs=2e-4)


def test_huge_effects_have_power_one_and_not_nan():
    assert paired_power(1e4, 6) == pytest.approx(1)


def test_detectable_effects_of_common_sizes():
    # Noncentral t, power 0.8, two-sided 5 %: Cohen's d of paired tests.
    for n, effect in ((3, 3.26), (5, 1.68), (6, 1.43), (8, 1.16), (10, 1.00), (20, 0.66)):
        assert minimal_detectable_effect(n) == pytest.approx(effect, abs=0.006)
    assert minimal_detectable_effect(1) is None


@pytest.mark.parametrize("effect", [0.3, 0.7, 1.5, 5.0])
def test_blocks_needed_is_the_first_size_with_the_power(effect):
    n = blocks_needed(effect)
    assert paired_power(effect, n) >= 0.8
    assert n == 2 or paired_power(effect, n - 1) < 0.8


def test_no_effect_is_never_found():
    assert blocks_needed(0.0) is None
    assert blocks_needed(0.01) is None
