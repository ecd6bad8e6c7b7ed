import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from lightning_perf.analysis.core.arrays import outlying


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_as_scipy_scores_them(values):
    apart = np.abs(np.array(values) - np.median(values))
    score = 0.6745 * apart - 3.5 * median_abs_deviation(values)
    expected = (score > 0) & (apart > 0.1 * np.median(values))
    assert outlying(np.array(values)).tolist() == expected.tolist()


def test_both_sides_count():
    assert outlying(np.array([100, 101, 99, 100, 50, 200, 100])).tolist() == [False] * 4 + [True, True, False]


def test_equal_values_have_none_and_a_tenth_is_not_enough():
    assert not outlying(np.full(9, 7)).any()
    assert outlying(np.array([100] * 8 + [110, 111])).tolist() == [False] * 9 + [True]
