"""Checkpoints that lack the state of the loss scaler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.objects import parts
from lightning_perf.run_files.numerics.precision import PrecisionMistake

_KEYS = {"scale", "growth_factor", "backoff_factor"}
_DEPTH = 4


def loaded_without_scaler(trainer: Trainer, checkpoint: Mapping[str, Any]) -> PrecisionMistake | None:
    """Check a checkpoint from which training resumes."""
    if trainer.scaler is None or not trainer.scaler.is_enabled() or "optimizer_states" not in checkpoint:
        return None
    if has_scaler_state(checkpoint):
        return None
    return PrecisionMistake(
        "checkpoint-without-scaler",
        "moderate",
        "The checkpoint has no state of the loss scaler",
        (
            (
                f"Training resumes with the first loss scale, {float(trainer.scaler.get_scale()):g}, instead of the "
                "one that it had reached. The first steps can overflow and are then skipped."
            ),
        ),
        f"Save checkpoints in 16-mixed with trainer.save_checkpoint, which adds the key "
        f"{type(trainer.precision_plugin).__qualname__!r}, and keep it in on_save_checkpoint. Resume this one with "
        "PrecisionCallback(init_scale=…), the scale that the run had.",
    )


def saved_without_scaler(
    trainer: Trainer, checkpoint: Mapping[str, Any], users_scaler: Any, step: int
) -> PrecisionMistake | None:
    """Check a checkpoint that has just been saved.

    Args:
        users_scaler: A scaler that the program made itself; None without one.
    """
    if "optimizer_states" not in checkpoint or has_scaler_state(checkpoint):
        return None
    lightnings = trainer.scaler is not None and trainer.scaler.is_enabled()
    if users_scaler is None and not lightnings:
        return None
    return PrecisionMistake(
        "checkpoint-without-scaler",
        "moderate",
        "Checkpoints lack the state of the loss scaler",
        ("A run that resumes from them starts with the first loss scale again and can skip its first steps.",),
        "Do not remove the key 'MixedPrecision' in on_save_checkpoint."
        if lightnings
        else "Save it: checkpoint['scaler'] = self.scaler.state_dict() in on_save_checkpoint, and load it in "
        "on_load_checkpoint. Lightning does both for Trainer(precision='16-mixed').",
        step=step,
    )


def has_scaler_state(value: Any, depth: int = _DEPTH) -> bool:
    """Return whether a checkpoint holds the state of a gradient scaler."""
    if not issubclass(type(value), dict) or not depth:
        return False
    if dict.keys(value) >= _KEYS:
        return True
    return any(has_scaler_state(one, depth - 1) for name, one in parts(value) if name != "state_dict")
