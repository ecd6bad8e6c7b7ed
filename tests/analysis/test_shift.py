"""The ratio of two samples of times, against scipy's rank-sum test and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from lightning_perf.analysis.shift import ratio_of


@pytest.mark.parametrize(("n", "m", "factor"), [(50, 50, 1.0), (20, 50, 1.1), (8, 12, 0.7)])
def test_the_interval_holds_the_ratios_that_the_rank_sum_test_does_not_reject(n: int, m: int, factor: float) -> None:
    rng = np.random.default_rng(n)
    before = rng.lognormal(16, 0.1, m).astype(int)
    after = (rng.lognormal(16, 0.1, n) * factor).astype(int)
    ratio = ratio_of(after.tolist(), before.tolist())
    assert ratio is not None

    def p_value(r: float) -> float:
        return float(mannwhitneyu(after, before * r, method="asymptotic", use_continuity=False).pvalue)

    # The test is decided between two quotients: those are the last that it rejects or the first that it does not.
    quotients = np.sort(np.divide.outer(after.astype(float), before.astype(float)), axis=None)
    low, high = np.searchsorted(quotients, [ratio.low, ratio.high])
    inside = np.linspace(quotients[low + 1] * (1 + 1e-9), quotients[high - 1] * (1 - 1e-9), 200)
    assert min(map(p_value, inside)) >= 0.05
    assert p_value(quotients[low] * (1 - 1e-9)) < 0.05
    assert p_value(quotients[high] * (1 + 1e-9)) < 0.05
    assert ratio.estimate == pytest.approx(np.median(quotients))


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        before, after = rng.lognormal(16, 0.2, 25), rng.lognormal(16, 0.2, 20) * 1.05
        ratio = ratio_of(after.astype(int).tolist(), before.astype(int).tolist())
        assert ratio is not None
        hits += ratio.low <= 1.05 <= ratio.high
    assert 0.92 * 400 <= hits <= 0.98 * 400  # 95 % with a standard error of 1.1 %


@pytest.mark.parametrize(("n", "m"), [(0, 50), (50, 0), (2, 2), (3, 3)])
def test_too_few_times_give_no_interval(n: int, m: int) -> None:
    assert ratio_of([100] * n, [100] * m) is None
