"""Times steps of an optimizer of torch over the recorded parameters, in several implementations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_perf.analysis.model.operator_calls import OperatorCalls
from lightning_perf.probe.arguments import TYPES
from lightning_perf.probe.messages import OptimizerTask

__all__ = ["IMPLEMENTATIONS", "OptimizerTimer"]

IMPLEMENTATIONS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""Arguments of the optimizers of ``torch.optim`` for each implementation."""

COPIES = 6
"""Tensors of a parameter's size that Adam needs at most: the parameter, its gradient, three states, and a temporary."""


class OptimizerTimer:
    """Optimizers over parameters like those of the recording, one for each implementation.

    Args:
        task: The optimizer.
        calls: The recording, with the shapes of the parameters.
        device: Type of the device.
        memory_bytes: Most memory for parameters, gradients and states.

    Raises:
        ValueError: The parameters need more memory, or torch has no such optimizer.
    """

    def __init__(self, task: OptimizerTask, calls: OperatorCalls, device: str, memory_bytes: int) -> None:
        shapes = [
            (parameter.shape, TYPES[parameter.type])
            for parameter in calls.parameters
            if parameter.type in TYPES
            for _ in range(parameter.count)
        ]
        needed = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes)
        if not shapes or needed * COPIES > memory_bytes:
            raise ValueError("its parameters need too much memory")
        self._device = device
        self._parameters: list[Tensor] = []
        for shape, dtype in shapes:
            parameter = torch.full(shape, 0.5, dtype=dtype, device=device, requires_grad=True)
            parameter.grad = torch.full_like(parameter, 0.01)
            self._parameters.append(parameter)
        self._optimizers: dict[str, Any] = {}
        self._make = getattr(torch.optim, task.name)
        self._options = _options(task)

    def implementations(self, recorded: str) -> tuple[str, ...]:
        """Return the implementations to compare, the recorded one first."""
        return (recorded, "fused")

    def step_ns(self, implementation: str, clock: Callable[[], int]) -> int:
        """Run one step and return its time in nanoseconds."""
        optimizer = self._optimizers.get(implementation)
        if optimizer is None:
            # One set of states is kept at a time, so that memory stays bounded.
            self._optimizers.clear()
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
        return clock() - start


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
