"""Times steps of an optimizer of torch over the recorded parameters, in several implementations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lightning_perf.analysis.model.operator_calls import OperatorCalls
from lightning_perf.probe.replay.arguments import TYPES
from lightning_perf.probe.replay.messages import OptimizerTask

__all__ = ["IMPLEMENTATIONS", "OptimizerTimer", "largest_size"]

IMPLEMENTATIONS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""Arguments of the optimizers of ``torch.optim`` for each implementation."""

MOST_ELEMENTS = 1 << 24
"""Elements of all parameters together. Of larger ones a part is updated, and the time is scaled up."""

COPIES = 9
"""Tensors of a parameter's size that two Adam optimizers need at most: the parameter, its gradient, three states of
each, and a temporary."""


class OptimizerTimer:
    """Optimizers over parameters of the recorded sizes, one for each implementation.

    Args:
        task: The optimizer.
        calls: The recording, with the shapes of the parameters.
        device: Type of the device.
        memory_bytes: Most memory for parameters, gradients and states.

    Raises:
        ValueError: The parameters need more memory, or torch has no such optimizer.
    """

    def __init__(self, task: OptimizerTask, calls: OperatorCalls, device: str, memory_bytes: int) -> None:
        sizes = [
            (prod(parameter.shape), TYPES[parameter.type])
            for parameter in calls.parameters
            if parameter.type in TYPES
            for _ in range(parameter.count)
        ]
        most = largest_size([size for size, _ in sizes], MOST_ELEMENTS)
        used = [(min(size, most), dtype) for size, dtype in sizes]
        if not used or sum(size * dtype.itemsize for size, dtype in used) * COPIES > memory_bytes:
            raise ValueError("its parameters need too much memory")
        self._scale = sum(size for size, _ in sizes) / max(1, sum(size for size, _ in used))
        self._device = device
        self._parameters: list[Tensor] = []
        for size, dtype in used:
            parameter = torch.full((size,), 0.5, dtype=dtype, device=device, requires_grad=True)
            parameter.grad = torch.full_like(parameter, 0.01)
            self._parameters.append(parameter)
        self._optimizers: dict[str, Any] = {}
        self._make = getattr(torch.optim, task.name)
        self._options = _options(task)

    def step_ns(self, implementation: str, clock: Callable[[], int]) -> int:
        """Run one step and return its time in nanoseconds, for all elements of the recorded parameters."""
        optimizer = self._optimizers.get(implementation)
        if optimizer is None:
            optimizer = self._make(self._parameters, **self._options, **IMPLEMENTATIONS[implementation])
            self._optimizers[implementation] = optimizer
            optimizer.step()  # makes the states
        if self._device != "cpu":
            torch.cuda.synchronize()
            clock = time.perf_counter_ns
        start = clock()
        optimizer.step()
        if self._device != "cpu":
            torch.cuda.synchronize()
        return round(self._scale * (clock() - start))


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
