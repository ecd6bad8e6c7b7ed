"""Accuracy against scipy and by hand, percentiles against numpy, and the calls that a measurement makes."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.measurement import timing
from lightning_perf.inference.measurement.measure import (
    Effort,
    Time,
    Timed,
    compare_accuracy,
    speedup,
    summarise,
    take_turns,
    wilson_interval,
)
from lightning_perf.inference.measurement.timing import BATCH, predict, time_calls

CPU = torch.device("cpu")
INPUTS = torch.zeros(2, 3)


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 40), (7, 40), (40, 40), (987, 1000)])
def test_the_interval_is_scipys(correct, n):
    interval = binomtest(correct, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(correct / n, n) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_counts_agreement_and_drop():
    labels = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4])
    original = np.array([0, 1, 2, 3, 4, 0, 1, 2, 0, 0])
    variant = np.array([0, 1, 2, 3, 4, 1, 2, 2, 3, 0])  # loses two, wins one, errs alike once
    accuracy = compare_accuracy(variant, original, labels)
    assert (accuracy.correct, accuracy.n, accuracy.units, accuracy.agreement) == (7, 10, 10, 0.7)
    # Of all pairs of a prediction of one and a prediction of the other, the share with the same class.
    assert accuracy.chance_agreement == pytest.approx(np.mean(variant[:, None] == original[None, :]))
    assert accuracy.drop_points == pytest.approx(10)
    # Bonett & Price by hand: (lost + 1) / (n + 2) = 3/12, (won + 1) / (n + 2) = 2/12.
    half = 1.959963984540054 * ((5 / 12 - (1 / 12) ** 2) / 12) ** 0.5
    ends = 100 * (1 / 12 - half), 100 * (1 / 12 + half)
    assert (accuracy.drop_low_points, accuracy.drop_high_points) == pytest.approx(ends)


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
        accuracy = compare_accuracy(np.where(flipped, 1 - original, original), original, labels)
        true_drop = 100 * (0.9 * 0.06 - 0.1 * 0.2)
        covered += accuracy.drop_low_points <= true_drop <= accuracy.drop_high_points
    assert covered >= 370  # 95 % of 400 is 380; fewer than 370 has a probability below 1 %


def timed(*walls, device=()):
    return Timed(tuple(walls), tuple(w // 2 for w in walls), tuple(device))


def test_percentiles_are_numpys_and_throughput_counts_all_time():
    walls = np.random.default_rng(0).integers(10**6, 10**7, 500)
    rounds = tuple(timed(*map(int, part)) for part in np.split(walls, 10))
    latency = summarise(rounds, None, batch=4, threads=2)
    expected = np.quantile(walls, [0.1, 0.5, 0.9, 0.99]) / 1e6
    assert (latency.p10_ms, latency.p50_ms, latency.p90_ms, latency.p99_ms) == pytest.approx(tuple(expected))
    assert latency.throughput == pytest.approx(4 * 500 / (walls.sum() / 1e9))
    assert latency.cpu_ms == pytest.approx(np.median(walls // 2) / 1e6)
    assert (latency.calls, latency.batch, latency.threads, latency.device_ms) == (500, 4, 2, None)
    assert latency.speedup is None


@pytest.mark.parametrize(
    ("calls", "p90", "p99"), [(9, False, False), (10, True, False), (99, True, False), (100, True, True)]
)
def test_percentiles_that_few_calls_cannot_tell_are_none(calls, p90, p99):
    latency = summarise((timed(*range(1000, 1000 + calls), device=[7] * calls),), None, batch=1, threads=1)
    assert (latency.p90_ms is not None, latency.p99_ms is not None) == (p90, p99)
    assert latency.slow_ms == (latency.p90_ms if p90 else latency.p50_ms)
    assert latency.device_ms == 7e-6


def test_drift_cancels_in_the_ratio_and_one_bad_round_does_not_count():
    drift = [100, 120, 150, 90, 300, 200, 110, 105, 95, 130]
    base = tuple(timed(2 * d) for d in drift)
    ratio = speedup(tuple(timed(d if n != 3 else 50 * d) for n, d in enumerate(drift)), base)
    assert (ratio.value, ratio.high) == pytest.approx((2, 2))
    assert ratio.n == 10


def test_turns_alternate_and_a_failure_leaves_the_others():
    calls, failures = [], []

    def timer(name):
        def time(order):
            calls.append((name, order.warmup, order.batch))
            if name == "b" and len(calls) > 4:
                raise VariantError("gone")
            return timed(1)

        return time

    effort = Effort(seconds=1, rounds=3, warmup=7, rewarm=2)
    turns = take_turns({n: timer(n) for n in "abc"}, 8, effort, lambda name, error: failures.append((name, str(error))))
    assert calls == [(name, 7, 8) for name in "abc"] + [(name, 2, 8) for name in "cbaac"]
    assert failures == [("b", "gone")]
    assert {name: len(rounds) for name, rounds in turns.items()} == {"a": 3, "c": 3}


def count_calls(request):
    calls = []
    times = time_calls(lambda batch: calls.append(len(batch)), INPUTS, CPU, request)
    assert set(calls) == {2}
    return len(calls), times


@pytest.mark.parametrize(
    ("request_", "untimed", "timed"),
    [
        (Time(batch=2, warmup=4, seconds=0, least=3, most=9), 4, 3),
        (Time(batch=2, warmup=0, seconds=60, least=3, most=9), 0, 9),
        (Time(batch=2, warmup=1, seconds=0, least=0, most=0), 1, 0),
    ],
)
def test_as_many_calls_as_asked_for(request_, untimed, timed):
    calls, times = count_calls(request_)
    assert calls == untimed + timed
    assert len(times.wall_ns) == len(times.cpu_ns) == timed
    assert all(wall > 0 for wall in times.wall_ns)
    assert times.device_ns == ()


def test_slow_calls_do_not_warm_up_for_long(monkeypatch):
    monkeypatch.setattr(timing, "WARMUP_S", -1.0)
    assert count_calls(Time(batch=2, warmup=10, seconds=0, least=2, most=9))[0] == 1 + 2


def test_the_collector_is_off_while_calls_are_timed_and_on_again_after_a_failure():
    seen = []

    def fail(_):
        seen.append(gc.isenabled())
        if len(seen) == 2:
            raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        time_calls(fail, INPUTS, CPU, Time(batch=2, warmup=1, seconds=0, least=1, most=1))
    assert seen == [True, False]
    assert gc.isenabled()


def test_events_of_a_gpu_are_on_its_own_stream(monkeypatch):
    recorded = []
    event = SimpleNamespace(
        record=recorded.append, synchronize=lambda: recorded.append("waited"), elapsed_time=lambda _: 2.5
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    second = torch.device("cuda:1")
    times = time_calls(lambda batch: batch, INPUTS, second, Time(batch=2, warmup=1, seconds=0, least=2, most=2))
    assert recorded == 2 * ["stream of cuda:1", "stream of cuda:1", "waited"]
    assert times.device_ns == (2_500_000, 2_500_000)


@pytest.mark.parametrize("n", [1, BATCH, 3 * BATCH - 5])
def test_each_input_has_its_output_and_no_batch_has_another_size(n):
    sizes = []
    inputs = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    outputs = predict(lambda batch: sizes.append(len(batch)) or 2 * batch, inputs, CPU)
    np.testing.assert_array_equal(outputs, 2 * inputs)
    assert set(sizes) == {min(n, BATCH)}
