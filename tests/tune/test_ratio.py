import numpy as np
import pytest

from lightning_perf.statistics.ranks import walsh_ratio
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.ratio import is_gain, is_loss, noise_share


def estimate(value, low, high):
    return Estimate(value, low, high, 0.95, 8, "")


@pytest.mark.parametrize(
    ("ratio", "noise", "gain", "loss"),
    [
        ((0.9, 0.85, 0.95), (1.0, 0.99, 1.01), True, False),
        ((0.9, 0.85, 1.0), (1.0, 0.99, 1.01), False, False),
        ((0.97, 0.96, 0.98), (1.0, 0.99, 1.05), False, False),
        ((0.97, 0.96, 0.98), (1.0, 0.95, 1.01), False, False),
        ((1.1, 1.05, 1.2), (1.0, 0.99, 1.01), False, True),
        ((1.03, 1.02, 1.04), (1.0, 0.95, 1.01), False, False),
        ((0.5, None, None), (1.0, 0.99, 1.01), False, False),
        ((0.9, 0.85, 0.95), (1.0, None, None), True, False),
    ],
)
def test_a_gain_lies_below_one_and_beyond_the_noise(ratio, noise, gain, loss):
    assert is_gain(estimate(*ratio), estimate(*noise)) is gain
    assert is_loss(estimate(*ratio), estimate(*noise)) is loss


def test_the_noise_is_its_far_end():
    assert noise_share(estimate(1.01, 0.99, 1.04)) == pytest.approx(0.04)
    assert noise_share(estimate(0.99, 0.8, 1.01)) == pytest.approx(0.25)
    assert noise_share(estimate(1, None, None)) == 0


def test_levers_that_do_nothing_are_hardly_ever_kept():
    rng = np.random.default_rng(1)
    kept = 0
    for _ in range(300):
        windows = rng.lognormal(0, 0.01, (4, 12)) * np.where(rng.random((4, 12)) < 0.1, 1.3, 1.0)
        kept += is_gain(walsh_ratio(windows[0], windows[1]), walsh_ratio(windows[2], windows[3]))
    assert kept <= 6
