"""Growth of the step time: against scipy, and on runs without growth."""

import numpy as np
import pytest

from lightning_perf.analysis.steps.fit_time import _theil_sen, find_growth
from tests.support.known import known


def test_the_slope_and_its_interval_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(3)
    x, y = np.arange(30.0), np.arange(30.0) + random.normal(0, 5, 30)
    expected = stats.theilslopes(y, x, 0.95)
    assert _theil_sen(x, y) == pytest.approx((expected[0], expected[2], expected[3]), rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_single_changes_are_no_growth(seed: int) -> None:
    random = np.random.default_rng(seed)
    number, zero = np.arange(300), np.zeros(300, np.int64)
    noise = random.gamma(2, 5_000_000, 300).astype(np.int64)
    for level_ms in (np.full(300, 10), np.where(number < 40, 10, 40), np.where(number < 150, 40, 10)):
        assert find_growth(number, level_ms * 1_000_000 + noise, zero, zero - 1) is None


def test_waits_take_their_share_of_the_growth() -> None:
    number = np.arange(300)
    found = known(find_growth(number, 10_000_000 + 40_000 * number, 5_000_000 + 30_000 * number, 0 * number - 1))
    assert found.wait_share == pytest.approx(0.75)
