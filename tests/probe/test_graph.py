"""The replay of a step's calls, with a queue that runs on this processor, and the estimate by hand."""

import math
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.host.launches import StepFloor
from lightning_perf.analysis.model.operators import OperatorCall, OperatorCalls
from lightning_perf.probe.estimate import estimate_graph
from lightning_perf.probe.replay.call_graph import GROUP, LEAST_REPETITIONS, REPETITIONS, CudaQueue, Run, time_graph
from lightning_perf.probe.replay.messages import CURRENT, GraphTimes, Setting
from lightning_perf.probe.replay.rounds import Rounds
from tests.probe.recorded import Counted, calls_of, task_of


class Processor(CudaQueue):
    """A queue of this processor, which repeats captured work.

    Args:
        error: Raised while work is captured.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.is_waiting_forbidden = False
        self.captured: Run | None = None

    def launched_ns(self, run: Run) -> float:
        start = time.perf_counter_ns()
        run()
        return float(time.perf_counter_ns() - start)

    queued_ns = launched_ns

    def capture(self, run: Run) -> Run:
        if self._error is not None:
            raise self._error
        self.captured = run
        return run

    @contextmanager
    def without_waits(self) -> Iterator[None]:
        self.is_waiting_forbidden = True
        try:
            yield
        finally:
            self.is_waiting_forbidden = False


def replayed(calls: OperatorCalls, queue: Processor, seconds: float = math.inf) -> GraphTimes | None:
    """The times of a step's calls on a queue, after rounds that were long enough for the longest call only."""
    task = task_of(calls, seconds=0.0)
    now_s = time.perf_counter()
    rounds = Rounds(task, pickle.loads(task.bound), dict(task.skipped), None, now_s)
    rounds.run()
    places, prepared = rounds.step_calls()
    return time_graph(
        places, prepared, task.settings[0], device="cpu", hold_bytes=1 << 28, deadline_s=now_s + seconds, queue=queue
    )


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_a_replay_has_the_operators_of_the_step(name: str) -> None:
    queue = Processor()
    calls = calls_of(name)
    times = replayed(calls, queue)
    assert times is not None
    assert times.places == calls.order
    assert len(times.launched_ns) == len(times.queued_ns) == len(times.replayed_ns) == REPETITIONS
    assert queue.captured is not None
    with Counted() as counted:
        queue.captured()
    assert counted.has_the_work_of(name)


def test_little_time_repeats_a_replay_less_often_and_a_failed_capture_never() -> None:
    times = replayed(calls_of("convolutions"), Processor(), seconds=0.0)
    assert times is not None
    assert len(times.replayed_ns) == LEAST_REPETITIONS
    error = RuntimeError("operation not permitted when stream is capturing")
    assert replayed(calls_of("convolutions"), Processor(error)) is None


class Call:
    """A call without a backward pass.

    Args:
        made: Called when it is made.
    """

    has_backward = False

    def __init__(self, made: Callable[[], None]) -> None:
        self._made = made
        self.bound = self

    def enter(self) -> list[Any]:
        return []

    def call(self, _arguments: list[Any]) -> None:
        self._made()


def test_calls_that_wait_for_the_device_stay_out_of_the_graph() -> None:
    queue, made = Processor(), []

    def item() -> None:
        if queue.is_waiting_forbidden:
            raise RuntimeError("called a synchronizing CUDA operation")
        made.append("item")

    calls = [Call(lambda: made.append("add")) for _ in range(GROUP + 3)]
    calls.insert(2, Call(item))
    times = time_graph(
        range(100, 100 + len(calls)), calls, Setting(CURRENT),  # type: ignore[arg-type]
        device="cpu", hold_bytes=1, deadline_s=0.0, queue=queue,
    )  # fmt: skip
    assert times is not None
    assert times.places == tuple(place for place in range(100, 100 + len(calls)) if place != 102)
    made.clear()
    assert queue.captured is not None
    queue.captured()
    assert made == ["add"] * (GROUP + 3)


def two_calls() -> OperatorCalls:
    """A step of 30 µs of kernels: one call of 10 µs forward and 10 µs backward, and two of 5 µs."""
    first = OperatorCall("aten::linear", "", "", "", "", 4, 40_000, 40_000, has_backward=True)
    second = OperatorCall("aten::relu", "", "", "", "", 8, 40_000, 0, has_backward=False)
    return OperatorCalls(4, True, None, (first, second), (0, 1, 1), (), 0)


def test_the_estimate_by_hand() -> None:
    # The device works for 60 of 200 µs. The profiler adds 20. Outside of the model, the host needs 80, and a long gap
    # takes 10. Two of three calls are in the graph, with 25 µs of kernels, which the replay makes 10 % shorter.
    times = GraphTimes((0, 1), (70e3,) * 3, (40e3,) * 3, (36e3,) * 3)
    floor = StepFloor(outside_ns=80e3, long_ns=10e3, busy_ns=60e3, waits_for_device=0.0)
    ahead = estimate_graph(times, two_calls(), floor, 200e3, added_ns=20e3)
    assert ahead.measured_ns == pytest.approx(25e3)
    assert ahead.noise_ns == 0
    assert ahead.low_ns == pytest.approx(0.8 * 2 / 3 * 90e3 + 2.5e3)
    assert ahead.high_ns == pytest.approx(100e3 + 2.5e3)
    # A host that waits for the device does not get ahead of it: 90 and 60 of 180 µs stay.
    waiting = estimate_graph(times, two_calls(), replace(floor, waits_for_device=1.0), 200e3, added_ns=20e3)
    assert waiting.low_ns == pytest.approx(0.8 * 2 / 3 * 30e3 + 2.5e3)
    assert waiting.high_ns == ahead.high_ns
    # Without the time of usual steps, the sure wait is that of the probe: 70 µs by the clock for 40 µs of the device.
    unknown = estimate_graph(times, two_calls(), floor, 200e3, added_ns=None)
    assert unknown.low_ns == pytest.approx(0.8 * 2 / 3 * 30e3 + 2.5e3)
    assert unknown.high_ns == pytest.approx(120e3 + 2.5e3)


def test_a_device_that_always_works_gains_the_gaps_only() -> None:
    times = GraphTimes((0, 1, 1), (50e3,) * 5, (50e3, 49e3, 51e3, 50e3, 50e3), (40e3,) * 5)
    floor = StepFloor(outside_ns=90e3, long_ns=0.0, busy_ns=200e3, waits_for_device=0.0)
    change = estimate_graph(times, two_calls(), floor, 200e3, added_ns=None)
    assert change.low_ns < 0.2 * 30e3 < change.high_ns
    assert change.high_ns - change.low_ns == pytest.approx(2 * change.noise_ns)
    assert change.rounds == 5
