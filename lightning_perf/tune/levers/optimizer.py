"""Optimizers that update all parameters in one kernel."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from lightning_perf.tune.lever import Machine
from lightning_perf.tune.training import Training

__all__ = ["FusedOptimizer"]

_FUSABLE = (SGD, Adagrad, Adam, AdamW)


@dataclass(frozen=True)
class FusedOptimizer:
    """``fused=True`` for the optimizers that have it."""

    name: str = "fused-optimizer"
    family: str = "optimizer"
    lines: tuple[str, ...] = ("torch.optim.…(…, fused=True)  # in configure_optimizers",)
    mends: tuple[str, ...] = ("unfused-optimizer",)
    changes_training: bool = False

    def missing(self, training: Training, machine: Machine) -> str | None:
        """See `Lever`."""
        if machine.device == "mps":
            return "needs a CPU or a CUDA GPU"
        if training.trainer.get("gradient_clip_val") and training.trainer.get("precision") == "16-mixed":
            return "gradient clipping under 16-mixed excludes it"
        try:
            optimizers = list(_optimizers(training.module.configure_optimizers()))
        except Exception as error:  # some ask their Trainer, which there is none of yet
            return f"configure_optimizers needs a running Trainer ({type(error).__name__})"
        others = {type(optimizer).__name__ for optimizer in optimizers if type(optimizer) not in _FUSABLE}
        if others:
            return f"{', '.join(sorted(others))} has no fused form"
        if not optimizers or all(optimizer.defaults.get("fused") for optimizer in optimizers):
            return "is fused already" if optimizers else "the module has no optimizer"
        return None

    def apply(self, training: Training) -> None:
        """See `Lever`."""
        original = training.module.configure_optimizers

        @functools.wraps(original)
        def configure_optimizers() -> Any:
            made = original()
            for optimizer in _optimizers(made):
                _fuse(optimizer)
            return made

        training.module.configure_optimizers = configure_optimizers


def _fuse(optimizer: Optimizer) -> None:
    """What the constructors of these classes do with ``fused=True``, in place: schedulers hold on to the object."""
    flags: Any = optimizer
    optimizer.defaults |= {"fused": True, "foreach": False}
    for group in optimizer.param_groups:
        group |= {"fused": True, "foreach": False}
    flags._step_supports_amp_scaling = True
    flags._need_device_dtype_check_for_fused = True


def _optimizers(made: Any) -> Iterator[Optimizer]:
    """The optimizers in any of the forms that ``configure_optimizers`` may return."""
    if isinstance(made, Optimizer):
        yield made
    elif isinstance(made, dict):
        yield from _optimizers(made.get("optimizer"))
    elif isinstance(made, (list, tuple)):
        for part in made:
            yield from _optimizers(part)
