import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.location import blocks_needed, minimal_detectable_effect, paired_power


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
