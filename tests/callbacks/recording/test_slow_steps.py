"""Which steps are slow, against a detector that calculates everything anew at each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightning_perf import CaptureOptions, PerfCallback
from lightning_perf.callbacks.recording.slow_steps import LEAST_HISTORY, LIMIT_EVERY, SlowStepDetector, capture_config


def brute_force(times: list[int], config: CaptureOptions) -> list[int]:
    """Positions at which a capture starts, by the rule of the documentation, with the limit renewed as ours is."""
    found, usual, row, limit, age = [], [], [], None, 0
    for place, time in enumerate(times):
        slow = limit is not None and time > limit
        if slow:
            row.append(time)
            if len(row) < config.sustained:
                continue
            found.append(place)
        if row:
            usual, row, age = usual + row, [], LIMIT_EVERY
        if not slow:
            usual.append(time)
            age += 1
        last = np.array(usual[-config.history :], dtype=float)
        if age >= LIMIT_EVERY and len(last) >= LEAST_HISTORY:
            deviation = 1.4826 * np.median(np.abs(last - np.median(last)))
            limit = round(np.median(last) + max(config.deviations * deviation, config.min_excess * np.median(last)))
            age = 0
    return found


def detected(times: list[int], config: CaptureOptions) -> list[int]:
    detector = SlowStepDetector(config)
    return [place for place, time in enumerate(times) if detector.add(time) is not None]


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_a_second_implementation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = rng.normal(10_000, 300, 600)
    for start in rng.integers(30, 560, 6):
        times[start : start + rng.integers(1, 9)] *= rng.uniform(1.1, 3)
    config = CaptureOptions(history=int(rng.integers(20, 120)), sustained=int(rng.integers(1, 5)))
    found = detected([round(time) for time in times], config)
    assert found == brute_force([round(time) for time in times], config)
    if seed == 0:
        assert found


def test_a_single_slow_step_is_no_slowness() -> None:
    times = [100] * 30 + [500, 100, 500, 500, 100] * 20
    assert detected(times, CaptureOptions()) == []
    assert detected(times, CaptureOptions(sustained=2))


def test_what_lasts_becomes_the_usual() -> None:
    found = detected([100] * 60 + [200] * 300, CaptureOptions(history=40, sustained=3))
    assert found
    assert found[0] == 62
    assert max(found) < 60 + 30


def test_nothing_is_slow_before_there_is_a_history() -> None:
    assert detected([100] * (LEAST_HISTORY - 1) + [900] * 3, CaptureOptions()) == []


def test_a_quiet_run_has_a_margin() -> None:
    assert detected([1000] * 50 + [1249] * 9, CaptureOptions()) == []
    assert detected([1000] * 50 + [1251] * 9, CaptureOptions()) == [52, 55, 58]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"history": 10}, ValueError, "history=10 is too small: give 20 or more"),
        ({"sustained": 0}, ValueError, "sustained=0"),
        ({"active": 0}, ValueError, "active=0"),
        ({"deviations": -1.0}, ValueError, "deviations"),
        ({"min_excess": float("nan")}, ValueError, "min_excess=nan"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes is a whole number"),
        ({"cooldown": True}, TypeError, "cooldown"),
        ({"on_signal": 1}, TypeError, "on_signal is True or False"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CaptureOptions(**options)


def test_true_means_the_defaults() -> None:
    assert capture_config(True) == CaptureOptions()
    assert capture_config(False) is None
    with pytest.raises(TypeError, match="capture_slow_steps is True, False or a CaptureOptions, not 3"):
        PerfCallback(capture_slow_steps=3)  # type: ignore[arg-type]
