"""Replays a mixed run's first steps in FP32, to tell whether mixed precision leads it elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lightning_perf.analysis.precision.shadow import OTHER_SEEDS, judge_drift
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.numerics.overflow_origin import Batch
from lightning_perf.callbacks.numerics.replay import (
    TorchRandomState,
    fresh_batch,
    plain_precision,
    replayed_step,
    unmarked,
)
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.precision.tf32 import Tf32Override
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.precision import LayerDrift, NumericsDrift, finite_or_none

__all__ = ["NumericsGuard"]

DRIFT_VALUES = 2**16
"""Values of a layer's output that its drift is computed from, at most. All of them, in FP32 and of two passes, are 66
GB for ResNet-50 at a batch of 256. Of so many, chosen at random, a norm is within 1 % of the whole one, unless a few
values make up most of it."""

DRIFT_SEED = 11
"""Of the choice."""

_Values = dict[int, torch.Tensor]


class NumericsGuard(FitObserver):
    """Keeps a run's first batches and where it started from, and replays them in FP32 once it has made its steps.

    The replays go through `training_step`, gradient clipping and the optimizer with the learning rates that the run
    had, but not through an `optimizer_step` of the user's. Weights, optimizer, random numbers, buffers and logs are
    put back afterwards, so that the run continues unaffected.

    Args:
        trainer: The Trainer, at the start of training.
        module: The LightningModule.
        steps: Optimizer steps to look at, at least 2.
        on_drift: Called if mixed precision changes the run more than another seed would. It must not raise.

    Raises:
        PrecisionError: The run is one that cannot be replayed.
    """

    consequence = "the run is not compared with FP32"

    def __init__(self, trainer: Trainer, module: Module, steps: int, on_drift: Callable[[], None]) -> None:
        if not module.automatic_optimization or trainer.world_size > 1:
            raise PrecisionError(
                "the first steps can be replayed in FP32 in automatic optimization and on one device only",
                "Leave out guard_steps, or run those steps with Trainer(devices=1)",
            )
        self._trainer = trainer
        self._module = module
        self._optimizer = trainer.optimizers[0]
        self._left = steps
        self._on_drift = on_drift
        self._steps: list[tuple[list[Batch], list[dict[str, Any]]]] = []
        self._batches: list[Batch] = []
        self._losses: list[torch.Tensor] = []
        self._layers: list[LayerDrift] = []
        self._weights = _clone(self._parameters())
        self._optimizer_state = _clone_state(self._optimizer.state)
        self._buffers = [buffer.detach().clone() for buffer in module.buffers()]
        self.result: NumericsDrift | None = None
        """The comparison, once the steps are made."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to watch."""
        return self._left == 0

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts: keep it."""
        if self.done:
            return
        # A clone, since a training_step may write into its batch.
        kept = fresh_batch(batch)
        random_state = TorchRandomState(self._trainer.strategy.root_device)
        self._batches.append(Batch(kept, batch_idx, random_state))
        if not self._steps and len(self._batches) == 1:
            self._layers = self._drift_of_layers(self._batches[0])

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The optimizer is about to step: note the learning rate and whatever else schedulers set."""
        if self.done:
            return
        settings = [{name: v for name, v in group.items() if name != "params"} for group in optimizer.param_groups]
        self._steps.append((self._batches, copy.deepcopy(settings)))
        self._batches = []

    def on_batch_end(self, outputs: Any) -> None:
        """A training batch has ended: keep its loss, and replay once all steps are made."""
        if self.done:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach() * self._trainer.accumulate_grad_batches)
        if not self._batches:
            self._left -= 1
            if self._left == 0:
                self.result = self._replay()
                self._forget()
                if self.result.beyond_seed_noise:
                    self._on_drift()

    def results(self) -> dict[str, Any]:
        """Return the comparison."""
        return {"numerics": self.result}

    def _forget(self) -> None:
        self._steps, self._batches, self._losses, self._buffers = [], [], [], []
        self._weights, self._optimizer_state = {}, {}

    def _parameters(self) -> list[torch.nn.Parameter]:
        return list(self._module.parameters())

    def _replay(self) -> NumericsDrift:
        precision = str(self._trainer.precision_plugin.precision)
        with self._in_fp32():
            mixed_end = self._mean_loss()
            fp32_losses = self._train(seed=None)
            fp32_end = self._mean_loss()
            seed_ends = []
            for seed in range(1, OTHER_SEEDS + 1):
                self._train(seed=seed)
                seed_ends.append(self._mean_loss())
        return judge_drift(
            precision=precision,
            mixed_losses=[float(loss) for loss in self._losses],
            fp32_losses=fp32_losses,
            mixed_end=mixed_end,
            fp32_end=fp32_end,
            seed_ends=seed_ends,
            layers=self._layers,
        )

    @contextmanager
    def _in_fp32(self) -> Iterator[None]:
        """True FP32, with weights, optimizer and everything else put back at the end."""
        weights, state = _clone(self._parameters()), self._optimizer.state
        settings = [dict(group) for group in self._optimizer.param_groups]
        tf32 = Tf32Override("off")
        try:
            with unmarked(self._module), plain_precision(self._trainer):
                yield
        finally:
            tf32.undo()
            _restore(self._parameters(), weights)
            self._optimizer.state = state
            for group, setting in zip(self._optimizer.param_groups, settings, strict=True):
                group.update(setting)

    def _train(self, *, seed: int | None) -> list[float]:
        """Train the steps from where the run started; with a seed, in another order and with other random numbers."""
        _restore(self._parameters(), self._weights)
        with torch.no_grad():
            for buffer, value in zip(self._module.buffers(), self._buffers, strict=True):
                buffer.copy_(value)
        self._optimizer.state = _clone_state(self._optimizer_state)
        batches = [batch for step, _ in self._steps for batch in step]
        order = list(range(len(batches)))
        if seed is not None:
            order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed)).tolist()
        ordered = iter([batches[position] for position in order])
        losses = []
        for kept, settings in self._steps:
            self._optimizer.zero_grad(set_to_none=True)
            for _ in kept:
                batch = next(ordered)
                batch.random_state.restore()
                if seed is not None:
                    torch.manual_seed(int(torch.randint(2**31, ()).item()) + seed)
                loss = replayed_step(self._trainer, self._module, fresh_batch(batch.batch), batch.batch_idx)
                if loss is not None:
                    (loss / self._trainer.accumulate_grad_batches).backward()
                    losses.append(loss.detach())
            for group, setting in zip(self._optimizer.param_groups, settings, strict=True):
                group.update(setting)
            self._module.configure_gradient_clipping(
                self._optimizer,
                gradient_clip_val=self._trainer.gradient_clip_val,
                gradient_clip_algorithm=self._trainer.gradient_clip_algorithm,
            )
            self._optimizer.step()
        return [float(loss) for loss in losses]

    def _mean_loss(self) -> float:
        """Return the mean loss over all batches, with the current weights and the run's random numbers."""
        losses = []
        for batch in (batch for step, _ in self._steps for batch in step):
            batch.random_state.restore()
            loss = replayed_step(
                self._trainer, self._module, fresh_batch(batch.batch), batch.batch_idx, gradients=False
            )
            if loss is not None:
                losses.append(loss.float())
        return float(torch.stack(losses).mean()) if losses else float("nan")

    def _drift_of_layers(self, batch: Batch) -> list[LayerDrift]:
        mixed = self._outputs(batch)
        tf32 = Tf32Override("off")
        try:
            with plain_precision(self._trainer):
                reference = self._outputs(batch)
        finally:
            tf32.undo()
        return [
            LayerDrift(name, finite_or_none(float((mixed[name] - output).norm() / output.norm())))
            for name, output in reference.items()
            if name in mixed and mixed[name].shape == output.shape and float(output.norm()) > 0
        ]

    def _outputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Values of each layer's output at its first call, in the order of computing, as FP32.

        The values of a layer are taken at the same positions in every pass.
        """
        outputs: dict[str, torch.Tensor] = {}

        def keep(name: str) -> Any:
            def look(layer: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
                if isinstance(output, torch.Tensor) and output.is_floating_point() and name not in outputs:
                    outputs[name] = _sampled(output)  # a copy: an in-place layer behind it may write into the output

            return look

        handles = [
            layer.register_forward_hook(keep(layer_name(name)))
            for name, layer in self._module.named_modules()
            if name and not any(True for _ in layer.children())
        ]
        try:
            with unmarked(self._module):
                batch.random_state.restore()
                replayed_step(self._trainer, self._module, fresh_batch(batch.batch), batch.batch_idx, gradients=False)
        finally:
            for handle in handles:
                handle.remove()
        return outputs


def _clone(parameters: Sequence[torch.nn.Parameter]) -> _Values:
    return {position: parameter.detach().clone() for position, parameter in enumerate(parameters)}


@torch.no_grad()
def _restore(parameters: Sequence[torch.nn.Parameter], values: _Values) -> None:
    for position, parameter in enumerate(parameters):
        parameter.copy_(values[position])


@torch.no_grad()
def _sampled(output: torch.Tensor) -> torch.Tensor:
    """At most `DRIFT_VALUES` values of a tensor as FP32: the same places for every tensor of its shape."""
    if output.numel() <= DRIFT_VALUES:
        return output.flatten().float().clone()
    random = torch.Generator().manual_seed(DRIFT_SEED)  # the generator of the process is not touched
    places = torch.randint(output.numel(), (DRIFT_VALUES,), generator=random).to(output.device)
    # By coordinates: to flatten a tensor in channels-last layout would copy all of it.
    return output[torch.unravel_index(places, output.shape)].float()


def _clone_state(state: Any) -> Any:
    """An optimizer's state with its own tensors, for the same parameters."""
    cloned = copy.copy(state)
    cloned.clear()
    for parameter, values in state.items():
        cloned[parameter] = {
            name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            for name, value in values.items()
        }
    return cloned
