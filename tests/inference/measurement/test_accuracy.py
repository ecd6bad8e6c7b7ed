import numpy as np
import pytest
from scipy.stats import binomtest

from lightning_perf.inference.measurement.accuracy import compare_accuracy, wilson_interval


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 40), (7, 40), (40, 40), (987, 1000)])
def test_the_interval_is_scipys(correct, n):
    interval = binomtest(correct, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(correct / n, n) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_counts_agreement_and_drop():
    labels = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4])
    original = np.array([0, 1, 2, 3, 4, 0, 1, 2, 0, 0])
    variant = np.array([0, 1, 2, 3, 4, 1, 2, 2, 3, 0])  # loses two, wins one, errs alike once
    accuracy = compare_accuracy(variant, original, labels)
    assert (accuracy.correct, accuracy.n, accuracy.units) == (7, 10, 10)
    assert accuracy.agreement == 0.7
    # Of all pairs of a prediction of one and a prediction of the other, the share with the same class.
    assert accuracy.chance_agreement == pytest.approx(np.mean(variant[:, None] == original[None, :]))
    assert accuracy.drop_points == pytest.approx(10)
    # Bonett & Price by hand: (lost + 1) / (n + 2) = 3/12, (won + 1) / (n + 2) = 2/12.
    half = 1.959963984540054 * ((5 / 12 - (1 / 12) ** 2) / 12) ** 0.5
    assert accuracy.drop_low_points == pytest.approx(100 * (1 / 12 - half))
    assert accuracy.drop_high_points == pytest.approx(100 * (1 / 12 + half))


def test_copies_widen_the_interval_and_the_original_has_no_drop():
    labels = np.zeros(100, dtype=np.int64)
    predicted = np.repeat([0, 1], [90, 10])
    alone = compare_accuracy(predicted, predicted, labels, is_original=True)
    copies = compare_accuracy(predicted, predicted, labels, units=10, is_original=True)
    assert (alone.drop_points, alone.drop_low_points, alone.chance_agreement) == (0, None, None)
    assert (copies.low, copies.high) == pytest.approx(wilson_interval(0.9, 10))
    assert copies.high - copies.low > alone.high - alone.low


def test_the_interval_of_the_drop_covers_it():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        labels = np.zeros(200, dtype=np.int64)
        original = (rng.random(200) < 0.1).astype(np.int64)
        flipped = rng.random(200) < np.where(original == 0, 0.06, 0.2)
        variant = np.where(flipped, 1 - original, original)
        accuracy = compare_accuracy(variant, original, labels)
        true_drop = 100 * (0.9 * 0.06 - 0.1 * 0.2)
        covered += accuracy.drop_low_points <= true_drop <= accuracy.drop_high_points
    assert covered >= 370  # 95 % of 400 is 380; fewer than 370 has a probability below 1 %
