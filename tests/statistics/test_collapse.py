from math import comb

import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.collapse import (
    CollapseCounts,
    ReachTime,
    clopper_pearson,
    collapse_limit,
    first_to_reach,
    kaplan_meier_median,
)


@pytest.mark.parametrize(("count", "n"), [(0, 1), (0, 6), (1, 6), (3, 6), (6, 6), (2, 40)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_each_end_of_the_interval_makes_the_count_as_unlikely_as_its_tail(count, n, confidence):
    ours, tail = clopper_pearson(count, n, confidence), (1 - confidence) / 2
    assert ours.value == count / n
    assert ours.low == 0 if not count else binomial(ours.low, n, range(count, n + 1)) == pytest.approx(tail)
    assert ours.high == 1 if count == n else binomial(ours.high, n, range(count + 1)) == pytest.approx(tail)


def binomial(share, n, counts):
    return sum(comb(n, k) * share**k * (1 - share) ** (n - k) for k in counts)


@pytest.mark.parametrize("table", [(0, 6, 1, 6), (0, 6, 4, 6), (2, 5, 0, 9), (3, 3, 0, 3), (0, 4, 0, 5), (1, 6, 5, 6)])
def test_fisher_is_the_share_of_tables_no_more_likely_than_the_observed_one(table):
    count_a, n_a, count_b, n_b = table
    both = count_a + count_b
    # Integers: no rounding can part two equally likely tables.
    ways = [comb(n_a, k) * comb(n_b, both - k) if both - k <= n_b else 0 for k in range(min(n_a, both) + 1)]
    expected = sum(way for way in ways if way <= ways[count_a]) / comb(n_a + n_b, both)
    assert CollapseCounts(*table).p == pytest.approx(expected)


@pytest.mark.parametrize(
    ("runs", "collapsed"),
    [
        ([0.86, 0.88, 0.91, 0.66, 0.89, 0.90], [0.66]),
        ([0.90, 0.91, 0.92, 0.89, 0.76, 0.75, 0.77, 0.74], []),
        ([0.9, 0.9, 0.9, 0.9, 0.85], []),
    ],
    ids=["one far below", "two arms that differ", "equal runs and one slightly lower"],
)
def test_runs_far_below_the_others_have_collapsed(runs, collapsed):
    assert [run for run in runs if run < collapse_limit(runs)] == collapsed


def test_too_few_runs_have_no_limit_and_no_shares():
    assert collapse_limit([0.9, 0.1, 0.9]) is None
    assert clopper_pearson(0, 0).value is None
    assert CollapseCounts(0, 0, 1, 2).p is None
    with pytest.raises(ValueError, match="3 of 2"):
        clopper_pearson(3, 2)


def hit(time):
    return ReachTime(time, True)


def miss(time):
    return ReachTime(time, False)


def test_median_is_scipys_survival_curve_at_one_half():
    rng = np.random.default_rng(7)
    for _ in range(30):
        runs = [ReachTime(float(t), bool(r)) for t, r in zip(rng.integers(1, 9, 9), rng.random(9) < 0.7, strict=True)]
        data = stats.CensoredData.right_censored([r.time_s for r in runs], [not r.reached for r in runs])
        curve = stats.ecdf(data).sf
        below = curve.quantiles[curve.probabilities <= 0.5 + 1e-12]
        assert kaplan_meier_median(runs) == (below[0] if len(below) else None)


def test_misses_are_not_dropped():
    assert kaplan_meier_median([hit(30), hit(40), hit(50)]) == 40
    assert kaplan_meier_median([hit(30), hit(40), miss(60), miss(60)]) == 40
    assert kaplan_meier_median([hit(30), miss(60), miss(60)]) is None
    assert kaplan_meier_median([]) is None


def test_sign_test_is_the_binomial_test():
    base = [hit(50), hit(52), miss(60), hit(51), miss(60), hit(50), hit(49)]
    candidate = [hit(40), hit(41), hit(44), hit(40), miss(60), hit(60), hit(40)]
    result = first_to_reach(base, candidate)
    assert result.n == 6  # neither run of the fifth block reached the goal
    assert result.p == pytest.approx(2 * (1 + 6) / 2**6)  # five of six, or six, on either side


def test_a_run_that_ended_earlier_without_the_goal_tells_nothing():
    assert first_to_reach([miss(30)], [hit(40)]).p is None
    assert first_to_reach([miss(30), None], [miss(40), hit(3)]).reason
    assert "cannot be paired" in first_to_reach([hit(1)], []).reason
