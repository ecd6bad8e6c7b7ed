"""`Pacer`: has a fit train window by window, as the tuner says."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import LightningCallback, Module, Trainer
from lightning_perf.callbacks.steps.step_timer import batch_samples
from lightning_perf.tune.messages import Ready, Run, Window

__all__ = ["Pacer"]


class Pacer(LightningCallback):
    """Waits before the first step and after each window until it is told to go on.

    While it waits, the DataLoader's workers are stopped, too: else they would fill their queues meanwhile, which makes
    the next window too fast, and take the cores from the training that has its turn.

    Args:
        ask: Sends a message, and returns the next order; None to stop.

    Attributes:
        began: Whether it came to the first step.
        stopped: Whether it was told to stop.
    """

    def __init__(self, ask: Callable[[Ready | Window], Run | None]) -> None:
        self.began = self.stopped = False
        self._ask = ask
        self._from = 0
        self._until = 0
        self._began_s = 0.0
        self._samples: int | None = 0
        self._step = 0
        self._micro_loss: torch.Tensor | None = None
        self._micro_batches = 0
        self._losses: list[torch.Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Wait before the first step."""
        self.began = True
        self._begin(trainer, self._ask(Ready()))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Note the loss; at the end of the window report it."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            # A sum is memory of our own: what a CUDA graph returns is overwritten by its next replay.
            self._micro_loss = loss.detach() + (0.0 if self._micro_loss is None else self._micro_loss)
            self._micro_batches += 1
        count = batch_samples(batch)
        self._samples = None if self._samples is None or count is None else self._samples + count
        if trainer.global_step > self._step:
            self._step = trainer.global_step
            if self._micro_loss is not None:
                # Lightning has divided them by the micro-batches of a step.
                self._losses.append(self._micro_loss * (trainer.accumulate_grad_batches / self._micro_batches))
            self._micro_loss, self._micro_batches = None, 0
        if trainer.global_step < self._until or trainer.should_stop:
            return
        _finish(trainer.strategy.root_device)
        seconds = time.perf_counter() - self._began_s
        losses = tuple(float(value) for value in self._losses)
        window = Window(seconds, trainer.global_step - self._from, self._samples, losses)
        workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        _signal(workers, signal.SIGSTOP)
        try:
            order = self._ask(window)
        finally:
            _signal(workers, signal.SIGCONT)
        self._begin(trainer, order)

    def _begin(self, trainer: Trainer, order: Run | None) -> None:
        if order is None:
            self.stopped = trainer.should_stop = True
            return
        self._from = self._step = trainer.global_step
        self._until = self._from + order.steps
        self._samples = 0
        self._losses = []
        self._began_s = time.perf_counter()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
