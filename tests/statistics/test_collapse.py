from math import comb

import pytest

from lightning_perf.statistics.collapse import clopper_pearson, collapse_limit, fisher_exact_p


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
    assert fisher_exact_p(*table) == pytest.approx(expected)


def test_a_66_percent_run_among_90_percent_ones_has_collapsed():
    runs = [0.86, 0.88, 0.91, 0.66, 0.89, 0.90]
    assert [run for run in runs if run < collapse_limit(runs)] == [0.66]


def test_two_arms_that_differ_are_not_a_collapse():
    runs = [0.90, 0.91, 0.92, 0.89, 0.76, 0.75, 0.77, 0.74]
    assert min(runs) > collapse_limit(runs)


def test_equal_runs_do_not_make_a_slightly_lower_one_a_collapse():
    assert collapse_limit([0.9, 0.9, 0.9, 0.9, 0.85]) < 0.85


def test_too_few_runs_have_no_limit_and_no_shares():
    assert collapse_limit([0.9, 0.1, 0.9]) is None
    assert clopper_pearson(0, 0).value is None
    assert fisher_exact_p(0, 0, 1, 2) is None
    with pytest.raises(ValueError, match="3 of 2"):
        clopper_pearson(3, 2)
