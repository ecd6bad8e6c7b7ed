from __future__ import annotations

import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.analysis.step_times import StepTimes, summarize_step_times
from lightning_perf.run_files.steps import StepSample

MS = 1_000_000
counts = st.integers(0, 2**62)
sample_values = st.builds(
    StepSample, counts, counts, counts, st.none() | counts, st.none() | st.integers(0, 10**6), st.booleans()
)


def sample(step: int, ms: float, *, wait_ms: float = 0, profiled: bool = False, samples: int | None = 4) -> StepSample:
    return StepSample(step, round(ms * MS), round(wait_ms * MS), None, samples, profiled)


def test_percentiles_and_rates_against_the_statistics_module():
    ms = [float(value) for value in np.random.default_rng(0).normal(100, 2, 205)]
    times = summarize_step_times([sample(n, value, wait_ms=25) for n, value in enumerate(ms)])
    kept = [round(value * MS) for value in ms[5:]]
    cuts = statistics.quantiles(kept, n=100, method="inclusive")
    assert times.steps == 200
    assert (times.p50_ns, times.p90_ns, times.p99_ns) == tuple(round(cuts[n]) for n in (49, 89, 98))
    assert times.total_ns == sum(kept)
    assert times.mean_ns == round(statistics.mean(kept))
    assert times.data_wait_share == pytest.approx(200 * 25 * MS / sum(kept))
    assert times.samples_per_second == pytest.approx(4 * 200 / (sum(kept) / 1e9))


def test_warmup_and_profiled_steps_are_left_out():
    slow_start = [sample(n, 4000) for n in range(5)]
    profiled = [sample(n, 300, profiled=True) for n in range(25, 28)]
    steady = [sample(n, 100) for n in range(5, 25)]
    after = [sample(n, 115) for n in range(28, 48)]
    times = summarize_step_times(slow_start + steady + profiled + after)
    assert (times.steps, times.warmup_steps, times.warmup_ns, times.profiled_steps) == (40, 5, 20_000 * MS, 3)
    assert times.after_profiling == pytest.approx(0.15)
    assert times.drift == pytest.approx(0.15)
    assert not times.only_profiled


def test_drift_of_a_run_that_slows_down_linearly():
    times = summarize_step_times([sample(n, 100 + n / 10) for n in range(200)], warmup_steps=0)
    first, last = statistics.median(range(50)), statistics.median(range(150, 200))
    assert times.drift == pytest.approx((100 + last / 10) / (100 + first / 10) - 1)
    assert times.outlier_steps == 0


def test_outliers_are_named_and_their_cost_counted():
    steps = [sample(n, 100 + n % 2) for n in range(100)]
    steps[40], steps[60] = sample(40, 700, wait_ms=600), sample(60, 900)
    times = summarize_step_times(steps, warmup_steps=0)
    assert [value.step for value in times.outliers] == [60, 40]
    assert times.outlier_steps == 2
    assert times.outlier_excess_ns == 1600 * MS - 2 * times.p50_ns


def test_equal_steps_have_no_outliers_and_small_changes_are_none():
    assert summarize_step_times([sample(n, 100) for n in range(50)]).outlier_steps == 0
    assert summarize_step_times([sample(n, 109 if n == 30 else 100) for n in range(50)]).outlier_steps == 0
    assert summarize_step_times([sample(n, 111 if n == 30 else 100) for n in range(50)]).outlier_steps == 1


@pytest.mark.parametrize(("count", "warmup"), [(1, 0), (2, 0), (3, 1), (11, 5), (12, 5)])
def test_short_runs_keep_more_than_half_of_their_steps(count, warmup):
    times = summarize_step_times([sample(n, 100, samples=None) for n in range(count)])
    assert (times.warmup_steps, times.steps) == (warmup, count - warmup)
    assert times.drift is None
    assert times.samples_per_second is None


def test_run_of_profiled_steps_only_says_so():
    times = summarize_step_times([sample(n, 100, profiled=True) for n in range(4)])
    assert times.only_profiled
    assert (times.steps, times.profiled_steps, times.p50_ns) == (3, 0, 100 * MS)


def test_no_samples_is_an_error():
    with pytest.raises(ValueError, match="no step samples"):
        summarize_step_times([])


@given(st.lists(sample_values, min_size=1, max_size=30))
def test_summary_survives_json(samples):
    times = summarize_step_times(
        [StepSample(s.step, s.step_ns >> 8, 0, s.device_ns, s.samples, s.profiled) for s in samples]
    )
    assert msgspec.json.decode(msgspec.json.encode(times), type=StepTimes) == times
    assert times.p50_ns <= times.p90_ns <= times.p99_ns
