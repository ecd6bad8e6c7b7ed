from __future__ import annotations

import random
from itertools import product
from statistics import pstdev

import numpy as np
import pytest

from lightning_perf.probe.estimate import NOISE_SDS, Part, lower_quartile, noise_ns


def quartile(values: tuple[float, ...]) -> float:
    return float(np.quantile(values, 0.25))


@pytest.mark.parametrize("count", range(2, 12))
def test_the_lower_quartile(count: int) -> None:
    values = tuple(random.Random(count).uniform(1, 2) for _ in range(count))
    assert lower_quartile(values) == pytest.approx(quartile(values))


def test_few_values() -> None:
    assert lower_quartile(()) == 0.0
    assert lower_quartile((3.0,)) == 3.0


def test_the_noise_is_that_of_all_ways_to_draw_rounds() -> None:
    """There are 256 ways to draw four of four rounds. A draw takes the same rounds of all parts and settings."""
    parts = [
        Part(700.0, (10.0, 12.0, 10.5, 11.0), (5.0, 6.5, 5.2, 5.1)),
        Part(300.0, (20.0, 21.0, 23.0, 22.0), (19.0, 18.0, 22.0, 21.0)),
    ]
    savings = []
    for rounds in product(range(4), repeat=4):
        drawn = [[tuple(times[at] for at in rounds) for times in (part.before, part.after)] for part in parts]
        savings.append(
            sum(part.recorded_ns * quartile(b) / quartile(a) for part, (a, b) in zip(parts, drawn, strict=True))
        )
    assert noise_ns(parts) == pytest.approx(NOISE_SDS * 4 / 3 * pstdev(savings), rel=0.25)


def test_a_stretch_in_which_all_is_slower_is_no_noise() -> None:
    slow = (1.0, 1.0, 1.6, 1.6, 1.0)
    part = Part(100.0, [10.0 * by for by in slow], [7.0 * by for by in slow])
    assert part.saving_ns == pytest.approx(30.0)
    assert noise_ns([part]) == pytest.approx(0.0)


def test_disturbed_rounds_hardly_move_the_saving() -> None:
    """Three of eight rounds of one setting, and two others of the other one, take half as long again."""
    before, after = [10.0 + 0.01 * number for number in range(8)], [7.0 + 0.01 * number for number in range(8)]
    for number in (1, 4, 6):
        before[number] *= 1.5
    for number in (0, 3):
        after[number] *= 1.5
    part = Part(100.0, before, after)
    assert part.saving_ns == pytest.approx(30.0, abs=0.2)
    assert abs(part.saving_ns - 30.0) < noise_ns([part]) < 15.0


def test_one_round_says_little() -> None:
    assert noise_ns([Part(100.0, [1.0], [0.5]), Part(50.0, [1.0, 1.0], [0.5, 0.5])]) == 300.0
    assert noise_ns([]) == 0.0
