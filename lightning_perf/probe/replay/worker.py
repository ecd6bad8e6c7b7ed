"""The worker process of a probe: it makes the recorded calls in all settings, and sends batches."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_perf.machine.environment import ALLOCATOR_VARIABLES, cpu_name
from lightning_perf.probe.replay.messages import Begin, GraphTimes, Measured, Ready, Replayed, Task, TransferTimes
from lightning_perf.probe.replay.rounds import OptimizerTimer, Rounds
from lightning_perf.trace.description import Batch, Settings
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.limits import limit_memory

DEVICE_MEMORY_SHARE = 0.25
"""Share of the device's free memory for the tensors of the calls. Their outputs may take as much again."""

LAUNCHES = 2000

TRANSFER_SHARE = 0.2
"""Share of the time for sending batches between processes, in a training that waits for batches."""

GRAPH_SHARE = 0.15
"""Share of the time on a device for replaying the calls from a CUDA graph."""


def main(channel: Channel) -> None:
    """Take a task, and send the times."""
    _leave_out_dynamo()
    channel.receive(Begin)
    channel.send(Ready(time.process_time()))
    task = channel.receive(Task)
    if task.device == "cpu":
        limit_memory()
    else:
        set_up_device(task.on)
        task = _limited_on_device(task)
    torch.manual_seed(0)
    begin = time.perf_counter()
    measured, rounds = measure(task)
    channel.send(measured)
    if task.device == "cuda":  # last, because a failed capture may leave the device unusable
        channel.send(Replayed(_graph_times(task, rounds, begin + task.seconds)))


def _leave_out_dynamo() -> None:
    """Put a stand-in for ``torch._dynamo`` in place. Optimizers load it, which takes a second, and do not use it.

    They call two of its functions (torch/_compile.py, torch/optim/optimizer.py). Nothing is compiled here.
    """
    if "torch._dynamo" in sys.modules:
        return
    stand_in = ModuleType("torch._dynamo")
    stand_in.__dict__.update(disable=lambda function, *_, **__: function, graph_break=lambda *_, **__: None)
    sys.modules[stand_in.__name__] = torch._dynamo = stand_in


def set_up_device(on: Settings) -> None:
    """Choose the device that the training used, if it is here, and give torch the training's settings."""
    if on.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
    with suppress(AttributeError, RuntimeError):  # the function is private, and some settings cannot change any more
        if on.allocator is not None and on.allocator not in map(os.environ.get, ALLOCATOR_VARIABLES):
            torch._C._accelerator_setAllocatorSettings(on.allocator)
    cudnn: Any = torch.backends.cudnn
    cudnn.benchmark, cudnn.deterministic = bool(on.cudnn_benchmark), bool(on.cudnn_deterministic)
    for number in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(number).uuid) == on.uuid:
            torch.cuda.set_device(number)


def _limited_on_device(task: Task) -> Task:
    """Limit the memory on the device, which the training may still hold, and return the task with that limit."""
    free, whole = torch.cuda.mem_get_info()
    limit = int(DEVICE_MEMORY_SHARE * free)
    torch.cuda.set_per_process_memory_fraction(min(1.0, 2 * limit / whole))
    return msgspec.structs.replace(task, memory_bytes=min(task.memory_bytes, limit))


def measure(task: Task) -> tuple[Measured, Rounds]:
    """Measure the calls of a task, and return the rounds as well. The time of the task begins now."""
    begin = time.perf_counter()
    torch.set_num_threads(task.threads)
    # Before other threads run: the process that sends the batches is forked.
    transfer = time_transfer(task.batch, TRANSFER_SHARE * task.seconds) if task.batch is not None else None
    optimizer = _optimizer(task)
    rounds_s = task.seconds * (1.0 if task.device == "cpu" else 1.0 - GRAPH_SHARE)
    rounds = Rounds(task, pickle.loads(task.bound), dict(task.skipped), optimizer, begin + rounds_s)
    rounds.run()
    page_faults = rounds.page_faults
    if page_faults is not None and optimizer is not None:
        page_faults += optimizer.page_faults
    measured = Measured(
        times=rounds.times(),
        optimizer=optimizer.times_ns() if optimizer is not None else {},
        skipped=rounds.skipped,
        launch_ns=_launch_ns(task.device),
        seconds=time.perf_counter() - begin,
        device=torch.cuda.get_device_name() if task.device == "cuda" else cpu_name() or "processor",
        uuid=str(torch.cuda.get_device_properties().uuid) if task.device == "cuda" else None,
        page_faults=page_faults,
        transfer=transfer,
    )
    return measured, rounds


def _graph_times(task: Task, rounds: Rounds, deadline_s: float) -> GraphTimes | None:
    """Return the times of the step's calls replayed from a CUDA graph; ``None`` if they cannot be."""
    from lightning_perf.probe.replay.call_graph import CudaQueue, time_graph

    with suppress(RuntimeError):  # too little memory for the calls that the rounds left out
        places, calls = rounds.step_calls()
        torch.cuda.synchronize()
        # The stream of the warm-up is that of the capture: autograd may not wait for another one within a capture.
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            return time_graph(
                places,
                calls,
                task.settings[0],
                device=task.device,
                hold_bytes=task.memory_bytes,
                deadline_s=deadline_s,
                queue=CudaQueue(),
            )
    return None


def _optimizer(task: Task) -> OptimizerTimer | None:
    """Return the optimizer to measure; ``None`` without one, or if it cannot be made here."""
    if task.optimizer is None:
        return None
    with suppress(ValueError, AttributeError, TypeError, RuntimeError, MemoryError):
        return OptimizerTimer(task)
    return None


def _launch_ns(device: str) -> float | None:
    """Return the host time to launch a kernel that does nothing."""
    if device != "cuda":
        return None
    one = torch.zeros(1, device=device)
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(LAUNCHES):
        one.add_(0)
    taken = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return taken / LAUNCHES


LARGE_BYTES = 1 << 16
"""Size from which the pages of a tensor are read: the memory of a worker process has to be mapped first."""

PAGE_BYTES = 4096

MOST_BYTES = 1 << 30
"""Most bytes of a batch to send. A larger one is not measured."""

MOST_ROUNDS = 15
LEAST_ROUNDS = 2


class _Batches(Dataset[Any]):
    """Batches with the contents of a recorded one, made of plain tensors, numbers and bytes."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        batch = self._batch
        size = batch.tensor_bytes // max(batch.tensors, 1)
        tensors = [torch.ones(size, dtype=torch.uint8) for _ in range(batch.tensors)]
        # Equal strings would be sent once.
        numbers = [float(index + number) for number in range(batch.objects)]
        return tensors, numbers, bytes(batch.object_bytes)


def time_transfer(batch: Batch, seconds: float) -> TransferTimes | None:
    """Send batches from a worker process, first as fast as possible and then at leisure.

    Returns ``None`` if this machine cannot fork, or if the batch is too large or takes too long.
    """
    sent_bytes = batch.tensor_bytes + batch.object_bytes
    if "fork" not in multiprocessing.get_all_start_methods() or sent_bytes > MOST_BYTES:
        return None
    with suppress(RuntimeError, OSError):
        loader = DataLoader(
            _Batches(batch), batch_size=None, num_workers=1, prefetch_factor=1, multiprocessing_context="fork"
        )
        return _times(iter(loader), time.perf_counter() + seconds)
    return None


def _times(batches: Any, deadline_s: float) -> TransferTimes | None:
    next(batches)  # it includes the start of the worker process
    sent, received = list[float](), list[float]()
    batch: Any = None
    for collected in (sent, received):
        until_s = (time.perf_counter() + deadline_s) / 2 if collected is sent else deadline_s
        while len(collected) < MOST_ROUNDS and time.perf_counter() < until_s:
            if collected is received:
                time.sleep(1.5 * max(sent) / 1e9)  # until the next batch has been sent
            begin_ns = time.perf_counter_ns()
            batch = next(batches)  # the one before is freed
            for tensor in batch[0]:
                if tensor.numel() >= LARGE_BYTES:
                    tensor[::PAGE_BYTES].sum()  # reads each page, as a training does
            collected.append(float(time.perf_counter_ns() - begin_ns))
    if min(len(sent), len(received)) < LEAST_ROUNDS:
        return None
    return TransferTimes(tuple(sent), tuple(received))
