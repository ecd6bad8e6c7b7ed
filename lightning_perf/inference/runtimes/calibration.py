"""Real inputs that tell the ranges of activations."""

from __future__ import annotations

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.subject import Subject

__all__ = ["CALIBRATION_BATCH", "require_calibration"]

CALIBRATION_BATCH = 32
"""Inputs at a time: bounds memory, and changes no range."""


def require_calibration(subject: Subject) -> None:
    """Make sure that there is something to calibrate with.

    Raises:
        VariantError: There is nothing.
    """
    if len(subject.calibration) == 0:
        raise VariantError("int8 needs real training inputs to calibrate with, and there are none")
