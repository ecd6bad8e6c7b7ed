import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from lightning_perf.analysis.intervals import Series, outlying, thin


def test_short_series_stays_whole():
    assert thin(np.array([10, 20, 25]), np.array([1, 0, 7]), 10) == Series((0, 10, 15), (1, 0, 7))


def test_empty_series():
    nothing = np.zeros(0, dtype=np.int64)
    assert thin(nothing, nothing, 0) == Series((), ())


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-50, 50)), min_size=1, max_size=200), st.integers(1, 6))
def test_thinned_series_keeps_each_buckets_extremes(changes, buckets):
    times = np.sort(np.array([time for time, _ in changes], dtype=np.int64))
    values = np.array([value for _, value in changes], dtype=np.int64)
    series = thin(times, values, 0, buckets)
    assert len(series.value) <= max(4 * buckets, 0) or len(series.value) == len(changes) <= 4 * buckets
    assert set(zip(series.time_ns, series.value, strict=True)) <= set(zip(times.tolist(), values.tolist(), strict=True))
    assert (series.time_ns[0], series.value[0]) == (times[0], values[0])
    assert (series.time_ns[-1], series.value[-1]) == (times[-1], values[-1])
    span = int(times[-1] - times[0]) + 1
    for bucket in range(buckets):
        begin, end = times[0] + bucket * span // buckets, times[0] + (bucket + 1) * span // buckets
        inside = values[(times >= begin) & (times < end)]
        kept = [v for t, v in zip(series.time_ns, series.value, strict=True) if begin <= t < end]
        if len(inside):
            assert (min(kept), max(kept)) == (inside.min(), inside.max())


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_as_scipy_scores_them(values):
    apart = np.abs(np.array(values) - np.median(values))
    score = 0.6745 * apart - 3.5 * median_abs_deviation(values)
    expected = (score > 0) & (apart > 0.1 * np.median(values))
    assert outlying(np.array(values)).tolist() == expected.tolist()
