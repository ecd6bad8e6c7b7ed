"""Replays the calls of a step from a CUDA graph, which the host launches at once, and times them with and without it.

All calls of the step are made in their order, also those that rounds leave out. A call reads tensors of its own, so the
graph has the kernels of the step and not its data flow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from lightning_perf.probe.replay.measure import Prepared, make_calls, wait_on_device
from lightning_perf.probe.replay.messages import GraphTimes, Setting

GROUP = 64
"""Calls with their backward passes that follow one another. The host makes them while the device waits."""

REPETITIONS, LEAST_REPETITIONS = 9, 3

Run = Callable[[], object]
"""Starts work on the device."""


class NotReplayedError(Exception):
    """Calls cannot be replayed. The message says why."""


class Queue(Protocol):
    """Runs and times work of a device."""

    def launched_ns(self, run: Run) -> float:
        """Return the time until the device is ready, from an empty queue on."""

    def queued_ns(self, run: Run) -> float:
        """Return the time of the device for work that is in its queue before it begins."""

    def capture(self, run: Run) -> Run:
        """Return a function that replays the work from a graph."""

    def without_waits(self) -> Any:
        """Return a context in which a call raises an error if the host would wait for the device."""


def time_graph(
    places: Sequence[int],
    calls: Sequence[Prepared],
    setting: Setting,
    *,
    device: str,
    hold_bytes: int,
    deadline_s: float,
    queue: Queue,
) -> GraphTimes | None:
    """Time the calls of a step as the host makes them, from a full queue, and from a graph.

    Returns ``None`` if no call can be replayed, or if the device cannot capture them.
    """

    def run(keys: Sequence[int]) -> dict[int, str]:
        return make_calls({key: calls[key] for key in keys}, setting, device, hold_bytes, lambda run: (run(), 0)).failed

    kept = list(range(len(calls)))
    run(kept)  # loads kernels, and makes tensors
    with queue.without_waits():
        failed = run(kept)
    kept = [key for key in kept if key not in failed]
    groups = [kept[at : at + GROUP] for at in range(0, len(kept), GROUP)]
    if not kept:
        return None

    def step() -> None:
        for group in groups:
            if reasons := run(group):
                raise NotReplayedError(next(iter(reasons.values())))

    launched, queued, replayed = [], [], []
    try:
        replay = queue.capture(step)
        replay()
        for number in range(REPETITIONS):
            if number >= LEAST_REPETITIONS and time.perf_counter() > deadline_s:
                break
            launched.append(queue.launched_ns(step))
            queued.append(sum(queue.queued_ns(partial(run, group)) for group in groups))
            replayed.append(queue.queued_ns(replay))
    except (NotReplayedError, RuntimeError):  # torch's error for a failed capture, and for too little memory
        return None
    return GraphTimes(tuple(places[key] for key in kept), tuple(launched), tuple(queued), tuple(replayed))


class CudaQueue:
    """The queue of the current CUDA device."""

    WAITS = 4
    """Waits that are tried, each twice as long as the one before."""

    def launched_ns(self, run: Run) -> float:
        """See `Queue`."""
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        run()
        torch.cuda.synchronize()
        return float(time.perf_counter_ns() - start)

    def queued_ns(self, run: Run) -> float:
        """See `Queue`. A wait that ends before the host has made all calls is repeated with twice the length."""
        make: Callable[..., Any] = torch.cuda.Event
        for number in range(self.WAITS):
            begin, end = make(enable_timing=True), make(enable_timing=True)
            torch.cuda.synchronize()
            wait_on_device(2**number)
            begin.record()
            run()
            in_time = not begin.query()
            end.record()
            torch.cuda.synchronize()
            if in_time:
                return float(begin.elapsed_time(end)) * 1e6
        raise NotReplayedError("the host is too slow")

    def capture(self, run: Run) -> Run:
        """See `Queue`. It captures on the current stream, but on another one if that is the default stream."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        with torch.cuda.graph(graph, stream=None if stream == torch.cuda.default_stream() else stream):
            run()
        torch.cuda.synchronize()
        return graph.replay

    @contextmanager
    def without_waits(self) -> Iterator[None]:
        """See `Queue`."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
