import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.location import Kept, non_inferiority, paired_difference, unpaired_difference

RNG = np.random.default_rng(4)
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
