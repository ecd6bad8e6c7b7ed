"""Run and time the calls of a variant."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_perf.inference.measurement.measure import Time, Timed
from lightning_perf.inference.model import finish

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_perf.inference.runtimes.base import Call

WARMUP_S = 10.0
"""Longest warm-up. Calls that take seconds need fewer warm-up calls."""


def time_calls(call: Call, batch: Tensor, device: torch.device, request: Time) -> Timed:
    """Time calls with a batch; each call ends when the device has finished its work."""
    _warm_up(call, batch, device, request.warmup)
    walls: list[int] = []
    cpus: list[int] = []
    devices: list[int] = []
    on_cuda = device.type == "cuda"
    if on_cuda:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(device)
    gc.collect()
    gc.disable()  # a garbage collection during a call does not belong to the call
    try:
        deadline = time.perf_counter() + request.seconds
        while len(walls) < request.most and (len(walls) < request.least or time.perf_counter() < deadline):
            cpu = time.process_time_ns()
            wall = time.perf_counter_ns()
            if on_cuda:
                start.record(stream)
            call(batch)
            if on_cuda:
                stop.record(stream)
                stop.synchronize()
            walls.append(time.perf_counter_ns() - wall)
            cpus.append(time.process_time_ns() - cpu)
            if on_cuda:
                devices.append(round(1e6 * start.elapsed_time(stop)))
    finally:
        gc.enable()
    return Timed(tuple(walls), tuple(cpus), tuple(devices))


def _warm_up(call: Call, batch: Tensor, device: torch.device, calls: int) -> None:
    """Make untimed calls; fewer if they are slow, but at least one, which may compile."""
    deadline = time.perf_counter() + WARMUP_S
    for _ in range(calls):
        call(batch)
        finish(device)
        if time.perf_counter() > deadline:
            break


BATCH = 32
"""Inputs per batch. Use the same batches in two processes to compare their outputs: for another batch size, a library
may choose a kernel that rounds differently."""


def predict(call: Call, inputs: NDArray[np.float32], device: torch.device) -> NDArray[np.float32]:
    """Run a variant on all inputs, at least one, in batches.

    The last batch is filled up with earlier inputs: runtimes that compile for each batch size would need seconds for
    the size of the remainder.
    """
    parts = []
    for start in range(0, len(inputs), BATCH):
        rows = np.array(inputs[max(0, min(start, len(inputs) - BATCH)) : start + BATCH])
        outputs = call(torch.from_numpy(rows).to(device)).cpu().numpy()
        parts.append(outputs[-len(inputs[start : start + BATCH]) :])
    return np.concatenate(parts)
