"""The phases of a step, and which of the Trainer's own profiler calls tell of them."""

from __future__ import annotations

from enum import Enum

__all__ = ["Phase", "Signal", "read_signal"]


class Phase(Enum):
    """A part of a training step; the value is the name of its range in the trace."""

    FETCH = "perf::fetch"
    TRANSFER = "perf::transfer"
    FORWARD = "perf::forward"
    BACKWARD = "perf::backward"
    OPTIMIZER = "perf::optimizer"
    CHECKPOINT = "perf::checkpoint"

    # Members are singletons. Enum's own hash is a Python function, called several times in each action of a step.
    __hash__ = object.__hash__


class Signal(Enum):
    """What one of the Trainer's profiler calls says about where the training loop is."""

    FETCH = "the next batch is fetched"
    TRANSFER = "the batch is moved to the device"
    FORWARD = "training_step runs"
    AUTOMATIC_STEP = "optimizer_step runs, with forward and backward inside"
    MANUAL_STEP = "an optimizer steps in manual optimization"
    ZERO_GRAD = "gradients are zeroed"
    CHECKPOINT = "a checkpoint is saved"
    VALIDATION = "validation begins"
    EPOCH = "an epoch of training batches runs"

    __hash__ = object.__hash__


_EXACT = {
    "optimizer_step": Signal.MANUAL_STEP,
    "save_checkpoint": Signal.CHECKPOINT,
    "run_training_epoch": Signal.EPOCH,
}

# The class names between are the user's. Validation has several heralds, since which comes first depends on whether
# the loop is between two steps, and whether the validation data is loaded anew.
_BY_ENDS = (
    ("[", ".train_dataloader_next", Signal.FETCH),
    ("[Strategy]", ".batch_to_device", Signal.TRANSFER),
    ("[Strategy]", ".training_step", Signal.FORWARD),
    ("[LightningModule]", ".optimizer_step", Signal.AUTOMATIC_STEP),
    ("[LightningModule]", ".optimizer_zero_grad", Signal.ZERO_GRAD),
    ("[LightningModule]", ".on_validation_model_zero_grad", Signal.VALIDATION),
    ("[LightningModule]", ".on_validation_model_eval", Signal.VALIDATION),
    ("[LightningModule]", ".val_dataloader", Signal.VALIDATION),
    ("[LightningDataModule]", ".val_dataloader", Signal.VALIDATION),
    ("[Callback]", ".on_validation_start", Signal.VALIDATION),
    ("[", ".val_next", Signal.VALIDATION),
)


def read_signal(action: str) -> Signal | None:
    """Read what an action name of the Trainer's profiler means for a step.

    The names are those of Lightning 2.6 (``trainer/call.py`` and ``loops/`` in its source).

    Args:
        action: The name that the Trainer gave to ``profiler.start`` or ``profiler.stop``.

    Returns:
        The signal, or None for an action that marks no phase.

    Example:
        >>> read_signal("[Strategy]DDPStrategy.batch_to_device")
        <Signal.TRANSFER: 'the batch is moved to the device'>
        >>> read_signal("[Callback]ModelSummary.on_fit_start") is None
        True
    """
    exact = _EXACT.get(action)
    if exact is not None:
        return exact
    for start, end, signal in _BY_ENDS:
        if action.endswith(end) and action.startswith(start):
            return signal
    return None
