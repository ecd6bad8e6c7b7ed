"""A Trainer's fit, as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import Trainer, holds_whole_model, optimizer_progress, step_number
from lightning_perf.callbacks.recording.data_loading import Facts, data_loading
from lightning_perf.callbacks.recording.schedule import expected_steps
from lightning_perf.callbacks.recording.window_notes import product_parameters
from lightning_perf.callbacks.run_record.device_health import device_uuids
from lightning_perf.callbacks.steps.lightning_hooks import HookTimes


class TrainerLoop:
    """The loop of a Trainer: a `TrainingLoop`."""

    name = "PerfCallback"

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._progress = optimizer_progress(trainer)
        self.rank = int(trainer.global_rank)
        self.world_size = int(trainer.world_size)
        self.nodes: int | None = int(trainer.num_nodes)
        self.device: torch.device = trainer.strategy.root_device
        self.log_every = int(trainer.log_every_n_steps)
        self.profiler: Any = trainer.profiler
        self.model: Any = trainer.lightning_module
        self.hook_times: HookTimes | None = HookTimes(trainer)
        self.obstacle: str | None = None
        # Compare by name: each Lightning package has a class of its own.
        if any(base.__name__ == "PyTorchProfiler" for base in type(trainer.profiler).__mro__):
            self.obstacle = (
                "No step was recorded: the Trainer's own PyTorchProfiler is active, and two profilers at a time crash. "
                'Leave out Trainer(profiler="pytorch") to get this report.'
            )

    @property
    def expected_steps(self) -> int | None:
        return expected_steps(self._trainer)

    @property
    def global_step(self) -> int:
        """Optimizer steps so far, as the Trainer counts them."""
        steps: int = self._trainer.global_step if self._progress is None else self._progress.total.completed
        return steps

    @property
    def automatic(self) -> bool:
        return bool(self._trainer.lightning_module.automatic_optimization)

    def step_number(self) -> int:
        return step_number(self._trainer)

    def validation_batches(self) -> int:
        return int(self._trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.ready)

    def loader_iterators(self) -> Sequence[Any]:
        combined = getattr(self._trainer.fit_loop, "_combined_loader", None)
        return tuple(getattr(getattr(combined, "_iterator", None), "iterators", ()))

    def loader_facts(self) -> Facts:
        return data_loading(self._trainer)

    def product_parameters(self) -> int | None:
        """Return the number of the model's parameters that products use; None if the model is sharded."""
        return product_parameters(self.model) if holds_whole_model(self._trainer) else None

    def tensor_source(self) -> tuple[Any, Iterable[Any]]:
        return self.model, self._trainer.optimizers

    def gpu_uuids(self) -> list[str]:
        """Return the names of its own GPU, and on rank 0 of the others of this machine."""
        devices = [self.device]
        if self.rank == 0:
            devices += getattr(self._trainer.strategy, "parallel_devices", None) or ()
        return device_uuids(list(dict.fromkeys(devices)))
