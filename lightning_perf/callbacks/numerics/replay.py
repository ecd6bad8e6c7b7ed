"""Running training batches again without leaving a mark on the training."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.precision.switch import plugin_module

__all__ = ["TorchRandomState", "fresh_batch", "plain_precision", "replayed_step", "unmarked"]

_LOGGING = ("log", "log_dict")


class TorchRandomState:
    """torch's random numbers at one moment, on the CPU and the device of a run.

    Args:
        device: The run's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Make torch draw the same numbers again."""
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


@contextmanager
def unmarked(module: Module) -> Iterator[None]:
    """Undo, at the end, all changes of running `training_step`, except to gradients.

    That is: random numbers (torch on CPU and CUDA devices, NumPy, Python), buffers, the states of torchmetrics,
    gradients and logged values. Compiled parts run eagerly. Anything else that the user's code keeps in
    `training_step`, e.g. a list of losses in an attribute, cannot be undone.

    Args:
        module: The LightningModule.
    """
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    metrics = [(layer, _metric_state(layer)) for layer in module.modules() if hasattr(layer, "_defaults")]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_silenced(module))
        for parameter, _ in gradients:
            parameter.grad = None  # a backward pass would add to it in place
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for layer, state in metrics:
                layer.__dict__.update(state)
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def plain_precision(trainer: Trainer) -> Iterator[None]:
    """Let a Trainer compute in FP32 inside the block.

    Args:
        trainer: The Trainer.
    """
    strategy = trainer.strategy
    plugin = strategy.precision_plugin
    strategy.precision_plugin = plugin_module(trainer).Precision()
    try:
        yield
    finally:
        strategy.precision_plugin = plugin


def fresh_batch(batch: Any) -> Any:
    """Return a batch with copies of its tensors, because a training_step may write into its batch."""
    return pytree.tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, batch)


def replayed_step(
    trainer: Trainer, module: Module, batch: Any, batch_idx: int, *, gradients: bool = True
) -> torch.Tensor | None:
    """Run `training_step` on a batch, in the precision that the Trainer's plugin has now.

    Args:
        trainer: The Trainer.
        module: The LightningModule.
        batch: The batch, on its device.
        batch_idx: Its number.
        gradients: Whether the loss gets a graph.

    Returns:
        The loss; None when the step returns none.
    """
    with torch.set_grad_enabled(gradients), trainer.precision_plugin.train_step_context():
        output = module.training_step(batch, *((batch_idx,) if _takes_batch_idx(module) else ()))
    loss = output.get("loss") if isinstance(output, dict) else output
    return loss if isinstance(loss, torch.Tensor) else None


def _takes_batch_idx(module: Module) -> bool:
    # As Lightning decides it: https://lightning.ai/docs/pytorch/stable/common/lightning_module.html#training-step
    parameters = inspect.signature(module.training_step).parameters
    return "batch_idx" in parameters or len(parameters) > 1


@contextmanager
def _silenced(module: Module) -> Iterator[None]:
    own = {name: vars(module)[name] for name in _LOGGING if name in vars(module)}
    for name in _LOGGING:
        object.__setattr__(module, name, _log_nothing)
    try:
        yield
    finally:
        for name in _LOGGING:
            object.__delattr__(module, name)
        for name, value in own.items():
            object.__setattr__(module, name, value)


def _log_nothing(*args: Any, **kwargs: Any) -> None:
    """Takes the place of a module's `log` while a batch is run again."""


def _metric_state(metric: nn.Module) -> dict[str, Any]:
    """The state of a torchmetrics `Metric`: plain attributes, which are replaced and not changed in place."""
    names = [*metric._defaults, "_update_count", "_computed", "_forward_cache", "_update_called"]  # type: ignore[misc]
    state = {name: vars(metric)[name] for name in names if name in vars(metric)}
    return {
        name: list(value) if isinstance(value, list) else value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }
