"""Runs batches of a training again, in its own precision or in FP32, without leaving a mark on the training."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn
from torch.utils import _pytree as pytree

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.peak_memory import own_memory
from lightning_perf.callbacks.precision.switch import plugin_module
from lightning_perf.callbacks.precision.tf32 import set_tf32
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.wrapped_methods import WrappedMethods

TensorCopies = list[tuple[torch.Tensor, torch.Tensor]]
"""Tensors of a training, each with a copy of its values."""


class KeptBatch(Struct, frozen=True):
    """A training batch, its number in the epoch, and torch's random numbers before it, on the CPU and the GPU."""

    batch: Any
    batch_idx: int
    cpu_random: torch.Tensor
    cuda_random: torch.Tensor | None

    def copied(self) -> KeptBatch:
        """Return it with copies of its tensors, because a training_step may write into its batch."""
        batch = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, self.batch)
        return replace(self, batch=batch)


class ReplayedPass(Struct, frozen=True):
    """The loss of a batch, and its gradients by the name of the parameter."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]


class Replay:
    """Runs batches of one training again.

    Weights, buffers, gradients, random numbers (torch, NumPy, Python), states of torchmetrics and logged values are as
    before afterwards. Compiled parts run eagerly. Anything else that the user's code keeps in `training_step`, e.g. a
    list of losses in an attribute, cannot be undone.
    """

    def __init__(self, trainer: Trainer, module: Module, state: FitState) -> None:
        self.trainer = trainer
        self.module = module
        self._state = state

    @property
    def possible(self) -> bool:
        """Whether one process can run a batch of this training by itself."""
        return bool(self.module.automatic_optimization) and int(self.trainer.world_size) == 1

    def keep(self, batch: Any, batch_idx: int) -> KeptBatch:
        """Keep a batch that is about to be trained on."""
        device = self.trainer.strategy.root_device
        cuda_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return KeptBatch(batch, batch_idx, torch.get_rng_state(), cuda_random)

    def run(
        self,
        kept: KeptBatch,
        *,
        scale: float = 1.0,
        fp32: bool = False,
        watch: AbstractContextManager[Any] | None = None,
    ) -> ReplayedPass | None:
        """Run a batch forward and backward inside of `watch`. Return None if it has no loss with a graph.

        The gradients are those of the loss times `scale`. The hooks of the parameters' `grad` are not called.
        """
        batch = kept.copied()
        with self.isolated(fp32=fp32):
            self._restore_random(batch)
            with torch.enable_grad(), watch or nullcontext():
                loss = self._training_step(batch)
                if loss is None or not loss.requires_grad:
                    return None
                trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
                found = torch.autograd.grad(loss * scale, list(trained.values()), allow_unused=True)
        gradients = {name: gradient for name, gradient in zip(trained, found, strict=True) if gradient is not None}
        return ReplayedPass(loss.detach(), gradients)

    def step(self, kept: KeptBatch, *, seed: int = 0) -> torch.Tensor | None:
        """Return the loss of a batch, inside of `isolated`. Another seed than 0 draws other random numbers."""
        self._restore_random(kept)
        if seed:
            torch.manual_seed(int(torch.randint(2**31, ()).item()) + seed)
        return self._training_step(kept.copied())

    @contextmanager
    def isolated(self, *, fp32: bool = False) -> Iterator[None]:
        """Undo, at the end, everything but changes of the weights. With `fp32` compute in FP32, without TF32."""
        self._state.own_passes = True
        module = self.module
        devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
        buffers = copied_tensors(module.buffers())
        gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
        metrics = [(layer, _metric_state(layer)) for layer in module.modules() if hasattr(layer, "_defaults")]
        python_state, numpy_state = random.getstate(), np.random.get_state()
        with ExitStack() as stack:
            stack.enter_context(own_memory(self.trainer.strategy.root_device))
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_silenced(module))
            if fp32:
                stack.enter_context(_plain_precision(self.trainer))
            for parameter, _ in gradients:
                parameter.grad = None  # a backward pass would add to it in place
            try:
                yield
            finally:
                write_back(buffers)
                for parameter, gradient in gradients:
                    parameter.grad = gradient
                for layer, state in metrics:
                    layer.__dict__.update(state)
                random.setstate(python_state)
                np.random.set_state(numpy_state)

    def _restore_random(self, kept: KeptBatch) -> None:
        torch.set_rng_state(kept.cpu_random)
        if kept.cuda_random is not None:
            torch.cuda.set_rng_state(kept.cuda_random, self.trainer.strategy.root_device)

    def _training_step(self, kept: KeptBatch) -> torch.Tensor | None:
        # As Lightning decides it: https://lightning.ai/docs/pytorch/stable/common/lightning_module.html#training-step
        parameters = inspect.signature(self.module.training_step).parameters
        batch_idx = (kept.batch_idx,) if "batch_idx" in parameters or len(parameters) > 1 else ()
        with self.trainer.precision_plugin.train_step_context():
            return loss_of(self.module.training_step(kept.batch, *batch_idx))


def loss_of(outputs: Any) -> torch.Tensor | None:
    """Return the loss in the outputs of `training_step`."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return loss if isinstance(loss, torch.Tensor) else None


def copied_tensors(tensors: Iterable[torch.Tensor]) -> TensorCopies:
    """Copy tensors, so that `write_back` can restore them."""
    return [(tensor, tensor.detach().clone()) for tensor in tensors]


@torch.no_grad()
def write_back(copies: TensorCopies) -> None:
    """Write the values of copies into their tensors."""
    for tensor, value in copies:
        tensor.copy_(value)


@contextmanager
def _plain_precision(trainer: Trainer) -> Iterator[None]:
    strategy = trainer.strategy
    plugin, flags = strategy.precision_plugin, set_tf32("off")
    try:
        strategy.precision_plugin = plugin_module(trainer).Precision()
        yield
    finally:
        strategy.precision_plugin = plugin
        flags.write()


@contextmanager
def _silenced(module: Module) -> Iterator[None]:
    wrapped = WrappedMethods()
    for name in ("log", "log_dict"):
        wrapped.wrap(module, name, lambda _: lambda *_, **__: None)
    try:
        yield
    finally:
        wrapped.restore()


def _metric_state(metric: nn.Module) -> dict[str, Any]:
    """The state of a torchmetrics `Metric`: plain attributes, which are replaced and not changed in place."""
    names = [*metric._defaults, "_update_count", "_computed", "_forward_cache", "_update_called"]  # type: ignore[misc]
    state = {name: vars(metric)[name] for name in names if name in vars(metric)}
    return {
        name: list(value) if isinstance(value, list) else value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }
