"""Times steps of an optimizer of torch over the recorded parameters, in several variants.

A training updates its parameters after a backward pass, which leaves neither them nor the optimizer's code in the
caches. So the variants here alternate, between the passes over the probed calls.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_perf.machine.page_faults import count_page_faults
from lightning_perf.probe.replay.arguments import TYPES
from lightning_perf.probe.replay.messages import FUSED, THREADS, OptimizerTask, Task

IMPLEMENTATIONS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""Arguments of the optimizers of ``torch.optim`` for each implementation."""

MOST_ELEMENTS = 1 << 24
"""Elements of all parameters together. Of larger ones a part is updated, and the time is scaled up."""

LARGE_ELEMENTS = (1 << 23) + (1 << 12)
"""Elements of a large parameter, over 32 MiB: glibc returns such blocks to the system, so temporaries cost page faults
(mallopt(3), M_MMAP_THRESHOLD). The part that is updated has parameters of this size if the recording has."""

COPIES = 9
"""Tensors of a parameter's size that two Adam optimizers need at most: the parameter, its gradient, three states of
each, and a temporary."""

SHARE = 0.2
"""Most of the time for steps of the optimizer, after the least number of timer."""

LEAST_STEPS = 3


class _Variant(NamedTuple):
    """A variant of the optimizer step: its name, its implementation and its threads."""

    name: str
    implementation: str
    threads: int


class OptimizerTimer:
    """Optimizers over parameters of the recorded sizes. They step alternately: as recorded, fused, with more threads.

    Raises:
        ValueError: The parameters need more memory than the task has, or torch has no such optimizer.
    """

    def __init__(self, task: Task) -> None:
        assert task.optimizer is not None
        self._task = task
        recorded = task.optimizer.implementation
        threads = next((setting.threads for setting in task.settings if setting.threads is not None), None)
        variants = [_Variant(recorded, recorded, task.threads), _Variant(FUSED, FUSED, task.threads)]
        if threads is not None:
            variants.append(_Variant(THREADS, recorded, threads))
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self._parameters, self._scale = _parameters(task)
        make = getattr(torch.optim, task.optimizer.name)
        options = _options(task.optimizer)
        self._optimizers = {
            implementation: make(self._parameters, **options, **IMPLEMENTATIONS[implementation])
            for implementation in {variant.implementation for variant in variants}
        }
        for optimizer in self._optimizers.values():
            optimizer.step()  # makes the states
        self._variants = cycle(variants)
        self._begin_s = time.perf_counter()
        self._spent_s = 0.0
        self._left = LEAST_STEPS * len(variants)
        self.seconds = sum(self._step(variant) for variant in variants) / len(variants)
        """Time of a step, about."""
        before = count_page_faults() or 0
        self._optimizers[recorded].step()
        self.page_faults = self._scale * ((count_page_faults() or 0) - before)
        """Page faults of a step in the recorded implementation, for all elements of the recorded parameters."""

    def step_next(self) -> None:
        """Run a step of the next variant, unless the steps take too much of the time."""
        if self._left <= 0 and self._spent_s > SHARE * (time.perf_counter() - self._begin_s):
            return
        self._left -= 1
        variant = next(self._variants)
        taken_s = self._step(variant)
        self._spent_s += taken_s
        self._times[variant.name].append(self._scale * taken_s * 1e9)

    def reserved_s(self, steps: int, left_s: float) -> float:
        """Return the time to reserve for some steps, in seconds, at most a share of the time left."""
        return min(steps * self.seconds, SHARE * left_s)

    def times_ns(self) -> dict[str, tuple[float, ...]]:
        """Return the times of all steps by variant, for all elements of the recorded parameters."""
        return {name: tuple(times) for name, times in self._times.items()}

    def _step(self, variant: _Variant) -> float:
        """Run a step and return its time in seconds."""
        torch.set_num_threads(variant.threads)
        on_device = self._task.device != "cpu"
        # Other programs lengthen the processor time of a thread less than the time on the clock.
        clock = time.perf_counter if on_device or variant.threads > 1 else time.thread_time
        if on_device:
            torch.cuda.synchronize()
        start_s = clock()
        self._optimizers[variant.implementation].step()
        if on_device:
            torch.cuda.synchronize()
        taken_s = clock() - start_s
        torch.set_num_threads(self._task.threads)
        return taken_s


def _parameters(task: Task) -> tuple[list[Tensor], float]:
    """Return parameters with gradients, and the number of all recorded elements over theirs."""
    recorded = [
        (prod(parameter.shape), TYPES[parameter.type])
        for parameter in task.calls.parameters
        if parameter.type in TYPES
        for _ in range(parameter.count)
    ]
    parts: list[tuple[int, torch.dtype]] = []
    for dtype in dict.fromkeys(dtype for _, dtype in recorded):
        sizes = [size for size, each in recorded if each == dtype]
        share = sum(sizes) / max(1, sum(size for size, _ in recorded))
        parts += [(size, dtype) for size in sample_sizes(sizes, int(share * MOST_ELEMENTS), LARGE_ELEMENTS)]
    if not parts or sum(size * dtype.itemsize for size, dtype in parts) * COPIES > task.memory_bytes:
        raise ValueError("its parameters need too much memory")
    parameters = []
    for size, dtype in parts:
        parameter = torch.full((size,), 0.5, dtype=dtype, device=task.device, requires_grad=True)
        parameter.grad = torch.full_like(parameter, 0.01)
        parameters.append(parameter)
    return parameters, sum(size for size, _ in recorded) / sum(size for size, _ in parts)


def sample_sizes(sizes: Sequence[int], whole: int, large: int) -> list[int]:
    """Return sizes that add up to about ``whole``, in which large and small ones have the shares that they had.

    Args:
        large: A large size. There is at least one of it if there was any.
    """
    if sum(sizes) <= whole:
        return list(sizes)
    small = [size for size in sizes if size < large]
    large_sum = sum(sizes) - sum(small)
    if not large_sum:
        most = largest_size(small, whole)
        return [min(size, most) for size in small]
    number = max(1, round(whole * large_sum / sum(sizes) / large))
    most = largest_size(small, round(number * large / large_sum * sum(small)))
    return [large] * number + [size for each in small if (size := min(each, most))]


def largest_size(sizes: Sequence[int], whole: int) -> int:
    """Return the largest size of a part with which all parts, cut to it, add up to at most ``whole``.

    Example:
        >>> largest_size([10, 100, 1000], 310), largest_size([10, 100], 310)
        (200, 100)
    """
    left = whole
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        share = left // (len(ordered) - number)
        if size > share:
            return share
        left -= size
    return max(ordered, default=0)


def _options(task: OptimizerTask) -> dict[str, Any]:
    options: dict[str, Any] = {"lr": 1e-4}
    if task.name == "SGD":
        options |= {"momentum": 0.9 if task.momentum else 0.0, "nesterov": task.nesterov}
    if task.name in ("Adam", "AdamW"):
        options["amsgrad"] = task.amsgrad
    if task.weight_decay:
        options["weight_decay"] = 1e-4
    elif task.name == "AdamW":
        options["weight_decay"] = 0.0
    return options
