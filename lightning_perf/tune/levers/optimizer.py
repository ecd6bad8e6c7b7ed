"""Optimizers that update all parameters in one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from lightning_perf.callbacks.lightning_compat import clips_as_lightning_does
from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers.lever import Machine, Setting
from lightning_perf.tune.training import Training

_FUSABLE = (SGD, Adagrad, Adam, AdamW)
_FLAGS = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")
"""Attributes that the constructors set with ``fused=True``; which of them differs by class and version."""


class FusedOptimizer:
    """``fused=True`` for the optimizers that have it."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        if machine.device == "mps":
            return "needs a CPU or a CUDA GPU"
        optimizers = optimizers_of(training)
        return _unfit(training, optimizers) if optimizers is not None else None

    def settings(self, training: Training) -> tuple[Setting, ...]:
        names = sorted({type(optimizer).__name__ for optimizer in optimizers_of(training) or ()}) or ["…"]
        lines = (f"torch.optim.{name}(…, fused=True)  # in configure_optimizers" for name in names)
        return tuple(Setting("optimizer", {"fused": "True"}, line) for line in lines)

    def apply(self, training: Training) -> None:
        original = training.module.configure_optimizers

        # Without functools.wraps: Lightning would unwrap it, and cannot take the partial function of LightningCLI then.
        def configure_optimizers() -> Any:
            made = original()
            optimizers = tuple(_optimizers(made))
            if (reason := _unfit(training, optimizers)) is not None:
                raise NotApplicableError(reason)
            for optimizer in optimizers:
                _fuse(optimizer)
            return made

        training.module.configure_optimizers = configure_optimizers


def optimizers_of(training: Training) -> tuple[Optimizer, ...] | None:
    """Make the optimizers. None where that needs a running Trainer, as for a schedule over all its steps."""
    try:
        return tuple(_optimizers(training.module.configure_optimizers()))
    except Exception:
        return None


def _unfit(training: Training, optimizers: tuple[Optimizer, ...]) -> str | None:
    if (reason := clipping_excludes_fusing(training, training.trainer.get("precision"))) is not None:
        return reason
    others = {type(optimizer).__name__ for optimizer in optimizers if type(optimizer) not in _FUSABLE}
    if others:
        return f"{', '.join(sorted(others))} has no fused form"
    if not optimizers:
        return "the module has no optimizer"
    if any(optimizer.defaults.get("differentiable") for optimizer in optimizers):
        return "a differentiable optimizer cannot be fused"
    return "is fused already" if all(optimizer.defaults.get("fused") for optimizer in optimizers) else None


def clipping_excludes_fusing(training: Training, precision: Any) -> str | None:
    """Return why Lightning refuses a fused optimizer in a precision, or None.

    Its mixed-precision plugin does not clip the gradients of an optimizer that may unscale them inside its step. It
    checks the optimizer only, so it also raises under ``bf16-mixed``.
    """
    if not training.trainer.get("gradient_clip_val"):
        return None
    if precision in ("16-mixed", "16", 16):
        return "gradient clipping under 16-mixed excludes it"
    if precision in ("bf16-mixed", "bf16") and clips_as_lightning_does(training.module):
        return "Lightning refuses gradient_clip_val with a fused optimizer under bf16-mixed"
    return None


def has_fused_optimizer(training: Training) -> bool:
    """Return whether the module makes a fused optimizer. False if it needs a running Trainer to make it."""
    return any(optimizer.defaults.get("fused") for optimizer in optimizers_of(training) or ())


def _fuse(optimizer: Optimizer) -> None:
    """Set ``fused=True`` on an optimizer that exists, as its constructor would: schedulers hold the object."""
    built: Optimizer = type(optimizer)([torch.nn.Parameter(torch.zeros(1))], fused=True)  # type: ignore[call-arg]
    vars(optimizer).update({name: value for name, value in vars(built).items() if name in _FLAGS})
    for settings in (optimizer.defaults, *optimizer.param_groups):
        settings |= {"fused": True, "foreach": None if settings["foreach"] else settings["foreach"]}
    for parameter, state in optimizer.state.items():  # Adagrad's is there from the start
        state["step"] = state["step"].to(device=parameter.device, dtype=torch.float32)


def _optimizers(made: Any) -> Iterator[Optimizer]:
    """The optimizers in any of the forms that ``configure_optimizers`` may return."""
    if isinstance(made, Optimizer):
        yield made
    elif isinstance(made, dict):
        yield from _optimizers(made.get("optimizer"))
    elif isinstance(made, (list, tuple)):
        for part in made:
            yield from _optimizers(part)
