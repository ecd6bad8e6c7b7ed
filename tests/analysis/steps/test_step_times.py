"""Summaries of step times, and steps that take longer periodically."""

import statistics

import numpy as np
import pytest

from lightning_perf.analysis.model.attention import language_model
from lightning_perf.analysis.steps.step_times import PeriodicSteps, find_period, summarize_step_times
from lightning_perf.callbacks.trainer_log import step_metrics
from lightning_perf.run_files.steps import StepSample
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.description import TOKENS_KEY
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


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
    assert (times.steps, times.warmup_steps, times.profiled_steps) == (40, 5, 3)
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


def times(count: int, period: int, extra_ms: int, *, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    base = 100 * MS * (1 + noise * random.random(count))
    return (base + np.where(np.arange(count) % period == 0, extra_ms * MS, 0)).astype(np.int64)


def period_of(number: np.ndarray, step_ns: np.ndarray) -> PeriodicSteps | None:
    return find_period(number, step_ns, step_ns // 2)


@pytest.mark.parametrize("period", [2, 3, 7, 10, 50])
def test_a_period_is_found_among_noise(period: int) -> None:
    found = known(period_of(np.arange(400), times(400, period, 200, noise=0.1)))
    assert found.period == period
    assert found.steps == -(-400 // period)
    assert found.per_step_ns == pytest.approx(200 * MS / period, rel=0.05)


def test_missing_steps_do_not_hide_it() -> None:
    number = np.delete(np.arange(200), np.arange(50, 57))
    found = period_of(number, times(200, 10, 300)[number])
    assert found == PeriodicSteps(10, 19, 400 * MS, 100 * MS, 150 * MS)


@pytest.mark.parametrize("seed", range(20))
def test_random_long_steps_have_no_period(seed: int) -> None:
    random = np.random.default_rng(seed)
    step_ns = np.where(random.random(500) < 0.05, 400 * MS, 100 * MS) + random.integers(0, 5 * MS, 500)
    assert period_of(np.arange(500), step_ns) is None


def test_few_long_steps_and_small_excesses_have_none() -> None:
    assert period_of(np.arange(30), times(30, 10, 300)) is None
    assert period_of(np.arange(200), times(200, 10, 20)) is None
    assert period_of(np.arange(0), np.array([], dtype=np.int64)) is None
    assert period_of(np.arange(200), times(200, 1, 300)) is None


def test_a_period_is_found_among_steps_that_vary() -> None:
    rng = np.random.default_rng(3)
    number = np.arange(5, 56)
    noise_ns = np.where(rng.random(len(number)) < 0.4, rng.uniform(10e6, 50e6, len(number)), 0.0)
    step_ns = (40e6 + noise_ns + np.where(number % 10 == 9, 300e6, 0.0)).astype(np.int64)
    found = known(find_period(number, step_ns, 0 * step_ns))
    assert (found.period, found.steps) == (10, 5)


def test_noise_alone_has_no_period() -> None:
    rng = np.random.default_rng(4)
    number = np.arange(200)
    found = []
    for _ in range(200):
        step_ns = (40e6 * rng.lognormal(0.0, 0.6, len(number))).astype(np.int64)
        found.append(find_period(number, step_ns, 0 * step_ns))
    assert found.count(None) >= 198


def samples(*tokens: int | None) -> list[StepSample]:
    return [StepSample(step, 100 * MS, 0, None, 4, False, count) for step, count in enumerate(tokens)]


def test_steps_without_tokens_do_not_dilute_the_rate() -> None:
    assert summarize_step_times(samples(64, None, 32), warmup_steps=0).tokens_per_second == pytest.approx(480)
    assert summarize_step_times(samples(None, None)).tokens_per_second is None
    assert step_metrics(samples(64, None, 32))["perf/tokens_per_s"] == pytest.approx(480)
    assert "perf/tokens_per_s" not in step_metrics(samples(None))


def window(start_us: int, **tokens: int) -> TraceBuilder:
    builder = TraceBuilder(**{TOKENS_KEY: tokens})
    return builder.step(start_us, start_us, 100).op("aten::mm", start_us + 10, 50, dims=[[2, 3], [3, 4]])


def test_tokens_of_several_windows_are_summed() -> None:
    first = window(0, steps=1, tokens=10, counted=20, padding=5, parameters=7).build()
    second = window(1000, steps=1, tokens=30).build()
    model = known(language_model(concatenate([first, second]), None, None))
    assert (model.tokens_per_step, model.padding, model.parameters) == (20, 0.25, 7)
    assert model.tokens_per_second == pytest.approx(40 / 200e-6)
    assert model.flops_per_token == pytest.approx(2 * 48 / 40)
    assert model.formula_flops_per_token == 42
