"""`Pacer`: has a fit train window by window, as the tuner says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from lightning_perf.callbacks.host import HostCallback, Module, Trainer
from lightning_perf.callbacks.step_timer import batch_samples
from lightning_perf.tune.messages import Ready, Run, Stop, Window

__all__ = ["Pacer"]


class Pacer(HostCallback):
    """Waits before the first step and after each window until it is told to go on.

    Args:
        ask: Sends what is there to say, and returns the next order.
    """

    def __init__(self, ask: Callable[[Ready | Window], Run | Stop]) -> None:
        self._ask = ask
        self._until = 0
        self._began_s = 0.0
        self._steps = 0
        self._samples: int | None = 0
        self._losses: list[torch.Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Wait before the first step."""
        self._begin(trainer, self._ask(Ready()))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Note the loss; at the end of the window report it."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        count = batch_samples(batch)
        self._samples = None if self._samples is None or count is None else self._samples + count
        if trainer.global_step < self._until or trainer.should_stop:
            return
        device = trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - self._began_s
        losses = tuple(float(value) for value in self._losses)
        self._begin(trainer, self._ask(Window(seconds, self._steps, self._samples, losses)))

    def _begin(self, trainer: Trainer, order: Run | Stop) -> None:
        if isinstance(order, Stop):
            trainer.should_stop = True
            return
        self._until = trainer.global_step + order.steps
        self._steps = order.steps
        self._samples = 0
        self._losses = []
        self._began_s = time.perf_counter()
