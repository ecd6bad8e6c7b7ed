"""Periodic steps on a busy machine, on which many other steps are longer than the median."""

from __future__ import annotations

import numpy as np

from lightning_perf.analysis.steps.step_times import find_period


def test_a_period_is_found_among_steps_that_vary() -> None:
    rng = np.random.default_rng(3)
    number = np.arange(5, 56)
    noise_ns = np.where(rng.random(len(number)) < 0.4, rng.uniform(10e6, 50e6, len(number)), 0.0)
    step_ns = (40e6 + noise_ns + np.where(number % 10 == 9, 300e6, 0.0)).astype(np.int64)
    found = find_period(number, step_ns, 0 * step_ns)
    assert found is not None
    assert (found.period, found.steps) == (10, 5)


def test_noise_alone_has_no_period() -> None:
    rng = np.random.default_rng(4)
    number = np.arange(200)
    found = []
    for _ in range(200):
        step_ns = (40e6 * rng.lognormal(0.0, 0.6, len(number))).astype(np.int64)
        found.append(find_period(number, step_ns, 0 * step_ns))
    assert found.count(None) >= 198
