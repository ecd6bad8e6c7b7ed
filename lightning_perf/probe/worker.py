"""The worker process of a probe: it makes the recorded calls in all settings and returns their times."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from lightning_perf.analysis.model.operator_calls import OperatorCalls
from lightning_perf.probe.messages import Begin, Measured, Ready, Task, Times
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.memory_limit import limit_memory

__all__ = ["main", "measure"]

ROUNDS = 2
"""Rounds that calls are chosen for, after one to warm up."""

MOST_ROUNDS = 15

ENOUGH = 0.9
"""Share of the time of all measurable operators that should be measured."""

WARM_UP = 1.6
"""Time of the first round, which also makes tensors and loads kernels, in times of a later one."""

DEVICE_MEMORY_SHARE = 0.25
"""Share of the device's free memory for the tensors of the calls. Their outputs may take as much again."""

LAUNCHES = 2000


def main(channel: Channel) -> None:
    """Load torch, take a task, and send the times."""
    import torch

    channel.receive(Begin)
    _load()
    channel.send(Ready())
    task = channel.receive(Task)
    if task.device == "cpu":
        limit_memory()
    else:
        task = _limited_on_device(task)
    torch.manual_seed(0)
    channel.send(measure(task))


def _limited_on_device(task: Task) -> Task:
    """Limit the memory on the device, which the training may still hold, and return the task with that limit."""
    import msgspec
    import torch

    free, whole = torch.cuda.mem_get_info()
    limit = int(DEVICE_MEMORY_SHARE * free)
    torch.cuda.set_per_process_memory_fraction(min(1.0, 2 * limit / whole))
    return msgspec.structs.replace(task, memory_bytes=min(task.memory_bytes, limit))


def _load() -> None:
    """Load the parts of torch that calls on tensors without values need: a second, before the time of a task begins."""
    import torch

    from lightning_perf.probe.valueless import Valueless

    one = Valueless(torch.empty(2, 2, device="meta"), "cpu")
    torch.ops.aten.div(one, 2.0)
    torch.ops.aten.mm(one, one)


def measure(task: Task) -> Measured:
    """Measure the calls of a task.

    Args:
        task: The task. Its time begins now.

    Returns:
        The times of all rounds. The first round warms up and is left out.
    """
    import torch

    from lightning_perf.probe.data_flow import follow
    from lightning_perf.probe.measure import Pool, Prepared, run_pass
    from lightning_perf.probe.selection import covered_share, select_calls

    begin = time.perf_counter()
    deadline = begin + task.seconds
    torch.set_num_threads(task.threads)
    optimizer_ns = _optimizer(task, begin + 0.2 * task.seconds)
    found, skipped = follow(task.calls, task.settings, task.batch_size, task.device)
    names = [setting.name for setting in task.settings]
    settings = task.settings
    weight = sum(setting.batch for setting in settings)
    possible = [place for place, bound in enumerate(found) if names[0] in bound]
    left_ns = max(0.0, deadline - time.perf_counter()) * 1e9
    chosen = select_calls(task.calls, possible, left_ns / (weight * (ROUNDS + WARM_UP)))
    most = covered_share(task.calls, select_calls(task.calls, possible, math.inf))
    if covered_share(task.calls, chosen) < ENOUGH * most and settings[-1].batch > 1:
        # A larger batch takes the most time, and is the first to be left out.
        settings = settings[:-1]
        weight = len(settings)
        chosen = select_calls(task.calls, possible, left_ns / (weight * (ROUNDS + WARM_UP)))
    pool = Pool(task.device, task.memory_bytes)
    calls: dict[str, dict[int, Prepared]] = {}

    def prepare() -> None:
        for setting in settings:
            kept = calls.get(setting.name, {})
            calls[setting.name] = {
                place: kept.get(place)
                or Prepared(place, found[place][setting.name], pool, has_backward=task.calls.calls[place].has_backward)
                for place in chosen
                if setting.name in found[place] and place not in skipped
            }

    prepare()
    times: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    taken: list[float] = []
    for number in range(MOST_ROUNDS + 1):
        start = time.perf_counter()
        if taken and start + min(taken) > deadline and number > 2:
            break
        for setting in settings if number % 2 == 0 else reversed(settings):
            measured, failed = run_pass(calls[setting.name], setting, task.device, task.threads, task.memory_bytes)
            for place, reason in failed.items():
                del calls[setting.name][place]
                if setting.name == names[0]:
                    skipped[place] = reason
            for place, pair in measured.items():
                times[place, setting.name].append(pair)
        taken.append(time.perf_counter() - start)
        if number == 0:
            # Now the speed of this machine is known, so more calls may fit into the time.
            speed = _recorded_ns(task.calls, chosen) * weight * WARM_UP / max(1.0, taken[0] * 1e9)
            left_ns = max(0.0, deadline - time.perf_counter()) * 1e9
            more = select_calls(task.calls, possible, speed * left_ns / (weight * (ROUNDS + WARM_UP)))
            if set(more) > set(chosen):
                chosen = more
                prepare()
                taken.clear()
    return Measured(
        times=tuple(
            Times(place, name, tuple(pair[0] for pair in pairs[1:]), tuple(pair[1] for pair in pairs[1:]))
            for (place, name), pairs in sorted(times.items())
        ),
        optimizer=optimizer_ns,
        skipped=skipped,
        launch_ns=_launch_ns(task.device),
        seconds=time.perf_counter() - begin,
        device=_device_name(task.device),
    )


def _recorded_ns(calls: OperatorCalls, chosen: Sequence[int]) -> float:
    """Return the recorded time of making each chosen call once."""
    return sum((call.forward_ns + call.backward_ns) / call.calls for call in (calls.calls[place] for place in chosen))


def _optimizer(task: Task, deadline: float) -> dict[str, tuple[float, ...]]:
    from lightning_perf.probe.optimizers import OptimizerTimer

    if task.optimizer is None:
        return {}
    clock = time.thread_time_ns if task.threads == 1 else time.perf_counter_ns
    found: dict[str, list[float]] = {}
    with suppress(ValueError, AttributeError, TypeError, RuntimeError, MemoryError):
        timer = OptimizerTimer(task.optimizer, task.calls, task.device, task.memory_bytes)
        names = timer.implementations(task.optimizer.implementation)
        for number in range(MOST_ROUNDS):
            if number > 1 and time.perf_counter() > deadline:
                break
            for name in names if number % 2 == 0 else reversed(names):
                found.setdefault(name, []).append(timer.step_ns(name, clock))
    return {name: tuple(values) for name, values in found.items()} if len(found) > 1 else {}


def _launch_ns(device: str) -> float | None:
    """Return the host time to launch a kernel that does nothing."""
    if device != "cuda":
        return None
    import torch

    one = torch.zeros(1, device=device)
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(LAUNCHES):
        one.add_(0)
    taken = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return taken / LAUNCHES


def _device_name(device: str) -> str:
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    from lightning_perf.machine.environment import cpu_name

    return cpu_name() or "processor"
