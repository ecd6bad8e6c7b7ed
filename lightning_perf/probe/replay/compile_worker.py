"""The worker process that compiles the recorded calls of a step, and times them compiled and one by one."""

from __future__ import annotations

import pickle
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from lightning_perf.probe.replay.messages import CompiledTimes, Task
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.memory_limit import limit_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["main", "time_compiled"]

ROUNDS, LEAST_ROUNDS, MOST_S = 15, 5, 20.0
"""Rounds of both, and the time from which the least number is enough."""


def main(channel: Channel) -> None:
    """Take a task, and send the times."""
    task = channel.receive(Task)
    limit_memory()
    channel.send(time_compiled(task))


def time_compiled(task: Task) -> CompiledTimes:
    """Compile the calls of a step with their backward passes, and time them.

    Args:
        task: The calls, on a processor. Only the first setting is used.
    """
    import torch

    from lightning_perf.probe.replay.call_graph import build_call_graph
    from lightning_perf.probe.replay.measure import Pool

    torch.manual_seed(0)
    torch.set_num_threads(task.threads)
    setting = task.settings[0]
    bound = {
        place: settings[setting.name]
        for place, settings in enumerate(pickle.loads(task.bound))
        if setting.name in settings
    }
    dtype = getattr(torch, setting.autocast) if setting.autocast else None
    with torch.autocast(task.device, dtype=dtype) if dtype is not None else nullcontext():
        made = build_call_graph(task.calls.order, bound, Pool(task.device, task.memory_bytes))
    gradients: list[Tensor] = []

    def step(module: Callable[..., tuple[Tensor, ...]]) -> None:
        with torch.autocast(task.device, dtype=dtype) if dtype is not None else nullcontext():
            outputs = module(*made.inputs)
        if not gradients:
            gradients.extend(map(torch.ones_like, outputs))
        torch.autograd.grad(outputs, made.leaves, gradients, allow_unused=True)

    clock = time.thread_time_ns if task.threads == 1 else time.perf_counter_ns

    def step_ns(module: Callable[..., tuple[Tensor, ...]]) -> float:
        start = clock()
        step(module)
        return float(clock() - start)

    step(made.module)
    begin = time.perf_counter()
    compiled = torch.compile(made.module, dynamic=False)
    step(compiled)
    compile_s = time.perf_counter() - begin
    begin = time.perf_counter()
    pairs: list[tuple[float, float]] = []
    while len(pairs) < LEAST_ROUNDS or (len(pairs) < ROUNDS and time.perf_counter() < begin + MOST_S):
        pairs.append((step_ns(made.module), step_ns(compiled)))
    one_by_one, in_one = zip(*pairs[1:], strict=True)
    return CompiledTimes(made.places, one_by_one, in_one, compile_s)
