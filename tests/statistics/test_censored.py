import numpy as np
import pytest
from scipy import stats

from lightning_perf.statistics.censored import ReachTime, first_to_reach, kaplan_meier_median


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
