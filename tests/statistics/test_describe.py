import math
import statistics

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.values import describe


def test_against_the_standard_library_and_scipy():
    values = np.random.default_rng(8).lognormal(2, 0.3, 11).tolist()
    summary = describe(values)
    assert summary.mean == pytest.approx(statistics.mean(values))
    assert summary.sd == pytest.approx(statistics.stdev(values))
    assert summary.median == pytest.approx(statistics.median(values))
    assert (summary.q1, summary.q3) == pytest.approx(
        (stats.scoreatpercentile(values, 25), stats.scoreatpercentile(values, 75))
    )
    assert summary.p90 == pytest.approx(stats.scoreatpercentile(values, 90))
    assert (summary.min, summary.max, summary.n, summary.missing) == (min(values), max(values), 11, 0)
    assert not summary.constant


def test_runs_without_a_number_are_counted_not_averaged():
    summary = describe([2.0, None, math.nan, 4.0, math.inf])
    assert (summary.n, summary.missing, summary.mean) == (2, 3, 3.0)


def test_single_and_no_run():
    single = describe([5.0])
    assert (single.mean, single.sd, single.median) == (5.0, None, 5.0)
    assert "single run" in single.reason
    assert not single.constant
    nothing = describe([None])
    assert (nothing.n, nothing.mean, nothing.max) == (0, None, None)
    assert nothing.reason


def test_equal_runs_are_constant():
    assert describe([5.0, 5.0, 5.0]).constant
