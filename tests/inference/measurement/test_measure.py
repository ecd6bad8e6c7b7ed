import numpy as np
import pytest

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.measurement.measure import Effort, Timed, speedup, summarise, take_turns


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
    assert latency.device_ms == 7e-6


def test_drift_cancels_in_the_ratio_and_one_bad_round_does_not_count():
    drift = [100, 120, 150, 90, 300, 200, 110, 105, 95, 130]
    base = tuple(timed(2 * d) for d in drift)
    fast = tuple(timed(d if n != 3 else 50 * d) for n, d in enumerate(drift))
    ratio = speedup(fast, base)
    assert ratio.value == pytest.approx(2)
    assert ratio.high == pytest.approx(2)
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
    assert calls == [
        ("a", 7, 8),
        ("b", 7, 8),
        ("c", 7, 8),
        ("c", 2, 8),
        ("b", 2, 8),
        ("a", 2, 8),
        ("a", 2, 8),
        ("c", 2, 8),
    ]
    assert failures == [("b", "gone")]
    assert {name: len(rounds) for name, rounds in turns.items()} == {"a": 3, "c": 3}
