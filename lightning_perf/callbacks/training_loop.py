"""The part of a training that the engine needs to know: a Trainer's fit, or a loop without a Trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from lightning_perf.callbacks.lightning_compat import Trainer, holds_whole_model, optimizer_progress, step_number
from lightning_perf.callbacks.recording.data_loading import Facts, data_loading
from lightning_perf.callbacks.recording.schedule import expected_steps
from lightning_perf.callbacks.recording.tokens import product_parameters
from lightning_perf.callbacks.steps.hook_times import HookTimes
from lightning_perf.callbacks.steps.step_tracker import StepCounter


class TrainingLoop(StepCounter, Protocol):
    """A training loop, at the start of training."""

    @property
    def name(self) -> str:
        """The class that the user sees, for messages."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def world_size(self) -> int:
        """Ranks of the run."""

    @property
    def device(self) -> torch.device:
        """The device that this process trains on."""

    @property
    def log_every(self) -> int:
        """Steps between two rows of the loggers; 0 without loggers."""

    @property
    def profiler(self) -> Any:
        """The Trainer's profiler, which it calls around every action; None without a Trainer."""

    @property
    def model(self) -> Any:
        """The model; None if it is not known."""

    def expected_steps(self) -> int | None:
        """Return the number of steps that the training will have, or None if that is open."""

    def loader_facts(self) -> Facts:
        """Return how batches are made, for the recordings."""

    def product_parameters(self) -> int | None:
        """Return the number of parameters that products use, or None if this process does not hold the whole model."""

    def hook_times(self) -> HookTimes | None:
        """Return the timer of hooks, or None in a loop without hooks."""

    def tensor_source(self) -> tuple[Any, Iterable[Any]]:
        """Return the model, or None if it is not known, and the optimizers."""

    def obstacle(self) -> str | None:
        """Return why the profiler cannot record this training, or None."""


class TrainerLoop:
    """The loop of a Trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._progress = optimizer_progress(trainer)
        self.name = "PerfCallback"

    @property
    def global_step(self) -> int:
        """Optimizer steps so far, as the Trainer counts them."""
        steps: int = self._trainer.global_step if self._progress is None else self._progress.total.completed
        return steps

    @property
    def automatic(self) -> bool:
        """Whether the module uses automatic optimization."""
        return bool(self._trainer.lightning_module.automatic_optimization)

    def step_number(self) -> int:
        """Return the number of the current step in the Trainer's own logs."""
        return step_number(self._trainer)

    @property
    def rank(self) -> int:
        """The global rank."""
        return int(self._trainer.global_rank)

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return int(self._trainer.world_size)

    @property
    def device(self) -> torch.device:
        """The device of the strategy."""
        device: torch.device = self._trainer.strategy.root_device
        return device

    @property
    def log_every(self) -> int:
        """Steps between two rows of the loggers."""
        return int(self._trainer.log_every_n_steps)

    @property
    def profiler(self) -> Any:
        """The Trainer's profiler."""
        return self._trainer.profiler

    @property
    def model(self) -> Any:
        """The LightningModule."""
        return self._trainer.lightning_module

    def expected_steps(self) -> int | None:
        """Return the number of steps that the fit will have, or None if that is open."""
        return expected_steps(self._trainer)

    def loader_facts(self) -> Facts:
        """Return how batches are made."""
        return data_loading(self._trainer)

    def product_parameters(self) -> int | None:
        """Return the number of the model's parameters that products use; None if the model is sharded."""
        return product_parameters(self._trainer.lightning_module) if holds_whole_model(self._trainer) else None

    def hook_times(self) -> HookTimes:
        """Return a timer of hooks."""
        return HookTimes(self._trainer)

    def tensor_source(self) -> tuple[Any, Iterable[Any]]:
        """Return the module and its optimizers."""
        return self._trainer.lightning_module, self._trainer.optimizers

    def obstacle(self) -> str | None:
        """Return why the profiler cannot record this fit, or None."""
        # Compare by name: each Lightning package has a class of its own.
        if any(base.__name__ == "PyTorchProfiler" for base in type(self._trainer.profiler).__mro__):
            return (
                "No step was recorded: the Trainer's own PyTorchProfiler is active, and two profilers at a time crash. "
                'Leave out Trainer(profiler="pytorch") to get this report.'
            )
        return None
