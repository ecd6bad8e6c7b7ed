import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_perf.inference.measurement import timing
from lightning_perf.inference.measurement.measure import Time
from lightning_perf.inference.measurement.timing import BATCH, predict, time_calls

CPU = torch.device("cpu")
INPUTS = torch.zeros(2, 3)


def count_calls(request):
    calls = []
    timed = time_calls(lambda batch: calls.append(len(batch)), INPUTS, CPU, request)
    assert set(calls) == {2}
    return len(calls), timed


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
    timed = time_calls(lambda batch: batch, INPUTS, second, Time(batch=2, warmup=1, seconds=0, least=2, most=2))
    assert recorded == 2 * ["stream of cuda:1", "stream of cuda:1", "waited"]
    assert timed.device_ns == (2_500_000, 2_500_000)


@pytest.mark.parametrize("n", [1, BATCH, 3 * BATCH - 5])
def test_each_input_has_its_output_and_no_batch_has_another_size(n):
    sizes = []

    def call(batch):
        sizes.append(len(batch))
        return 2 * batch

    inputs = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    np.testing.assert_array_equal(predict(call, inputs, torch.device("cpu")), 2 * inputs)
    assert set(sizes) == {min(n, BATCH)}
