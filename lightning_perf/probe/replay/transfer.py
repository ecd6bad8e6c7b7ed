"""Times the way of a batch from a worker process of a DataLoader to the process that trains."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from lightning_perf.probe.replay.messages import TransferTimes
from lightning_perf.trace.description import Batch

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
