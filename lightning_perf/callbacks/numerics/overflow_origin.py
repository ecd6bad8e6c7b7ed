"""Where an overflow came up: the first layer with inf or nan, found by running the batch again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.numerics.replay import TorchRandomState, replayed_step, unmarked
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.samples import OverflowOrigin

__all__ = ["Batch", "OverflowLocator", "find_origin"]


@dataclass(frozen=True)
class Batch:
    """A training batch with the state that is needed to run it again.

    Attributes:
        batch: The batch, on its device.
        batch_idx: Its number in the epoch.
        random_state: torch's random numbers before it.
    """

    batch: Any
    batch_idx: int
    random_state: TorchRandomState


class OverflowLocator(FitObserver):
    """Keeps the batches of a step, and runs them again when the step was skipped.

    Args:
        trainer: The Trainer.
        module: The LightningModule.
        limit: Overflows to look into; further ones cost nothing.
    """

    consequence = "the origin of overflows is not looked for any more"

    def __init__(self, trainer: Trainer, module: Module, limit: int) -> None:
        self._trainer = trainer
        self._module = module
        self._left = limit
        self._batches: list[Batch] = []

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Keep a batch until the step it belongs to is over."""
        if not self._left:
            return
        if batch_idx % self._trainer.accumulate_grad_batches == 0:
            self._batches = []
        random_state = TorchRandomState(self._trainer.strategy.root_device)
        self._batches.append(Batch(batch, batch_idx, random_state))

    def locate(self, optimizer: Any, scale: float) -> OverflowOrigin | None:
        """Find the origin of the overflow of the step that was just skipped.

        In manual optimization the step cannot be run again, as it would step the optimizers: the gradients that it
        left are looked at instead.

        Args:
            optimizer: The optimizer that did not step.
            scale: The loss scale of the step.

        Returns:
            The origin; None when it does not show.
        """
        if not self._left:
            return None
        self._left -= 1
        batches, self._batches = self._batches, []
        if not self._module.automatic_optimization:
            return _origin_in_gradients(self._module, optimizer)
        # All of them, though the first that overflowed is the answer: it may be another one on another rank, and all
        # ranks have to come by the same collectives.
        origins = [find_origin(self._trainer, self._module, batch, scale) for batch in batches]
        return next((origin for origin in origins if origin is not None), None)


def find_origin(trainer: Trainer, module: Module, batch: Batch, scale: float) -> OverflowOrigin | None:
    """Run a batch forward and backward once more, looking at the output and gradient of every layer.

    Dropout draws the same numbers as the first time. Weights, gradients, random numbers and logs stay unchanged.

    Args:
        trainer: The Trainer.
        module: The LightningModule, with the weights of the step that was skipped.
        batch: The batch.
        scale: The loss scale to multiply the loss with.

    Returns:
        The first value in the order of computing that is inf or nan; None if all are finite.
    """
    # Verdicts stay on the device until all are in: one wait for the whole batch.
    seen: list[tuple[str, str, torch.Tensor]] = []
    with unmarked(module), _watched(module, seen):
        batch.random_state.restore()
        loss = replayed_step(trainer, module, batch.batch, batch.batch_idx)
        if loss is None:
            return None
        seen.append(("", "the loss", _judge(loss)))
        parameters = [p for p in module.parameters() if p.requires_grad]
        scaled = loss * scale / trainer.accumulate_grad_batches
        torch.autograd.grad(scaled, parameters, allow_unused=True)
    verdicts = torch.stack([verdict.to("cpu", torch.int8) for *_, verdict in seen]).tolist()
    for (name, what, _), verdict in zip(seen, verdicts, strict=True):
        if verdict:
            return OverflowOrigin(name, what, _VALUES[verdict])
    return None


_VALUES: dict[int, Literal["inf", "nan"]] = {1: "inf", 2: "nan"}


@contextmanager
def _watched(module: Module, seen: list[tuple[str, str, torch.Tensor]]) -> Iterator[None]:
    """Have the verdict on each layer's output and gradients appended, in the order of computing."""

    def watch(name: str, what: str) -> Any:
        def look(gradient: torch.Tensor) -> None:
            seen.append((name, what, _judge(gradient)))

        return look

    def watch_output(name: str) -> Any:
        def look(layer: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
            for value in torch.utils._pytree.tree_leaves(output):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    seen.append((name, "its output", _judge(value)))
                    # Not a backward hook on the layer, which an in-place ReLU behind it breaks.
                    if value.requires_grad:
                        value.register_hook(watch(name, "the gradient of its output"))  # type: ignore[no-untyped-call]

        return look

    handles = []
    try:
        for name, layer in module.named_modules():
            if name and not any(True for _ in layer.children()):
                handles.append(layer.register_forward_hook(watch_output(layer_name(name))))
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                owner, _, own = layer_name(name).rpartition(".")
                handles.append(parameter.register_hook(watch(owner, f"the gradient of its {own}")))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _origin_in_gradients(module: Module, optimizer: Any) -> OverflowOrigin | None:
    """The last parameter, in the module's order, with inf or nan in its gradient: backward runs from the end."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = [(name, p.grad) for name, p in module.named_parameters() if id(p) in stepped and p.grad is not None]
    if not named:
        return None
    verdicts = torch.stack([_judge(gradient).to("cpu", torch.int8) for _, gradient in named]).tolist()
    for (name, _), verdict in zip(reversed(named), reversed(verdicts), strict=True):
        if verdict:
            owner, _, own = layer_name(name).rpartition(".")
            return OverflowOrigin(owner, f"the gradient of its {own}", _VALUES[verdict])
    return None


@torch.no_grad()
def _judge(values: torch.Tensor) -> torch.Tensor:
    """0 for finite values, 1 when there is an inf, 2 when there is a nan, as a scalar tensor."""
    if values.is_sparse:
        values = values.coalesce().values()
    return torch.where(values.isnan().any(), 2, torch.where(values.isinf().any(), 1, 0))
