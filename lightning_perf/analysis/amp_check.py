"""The predicted gain of mixed precision beside the gain that came of it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.analysis.amp_gain import AmpGain

__all__ = ["AmpCheck", "check_prediction"]


@dataclass(frozen=True)
class AmpCheck:
    """A prediction beside what was measured.

    Attributes:
        predicted: Least and most speed-up predicted.
        measured: Step time in FP32 over that in mixed precision.
        held: Whether what was measured is within what was predicted.
    """

    predicted: tuple[float, float]
    measured: float
    held: bool


def check_prediction(gain: AmpGain, mixed_step_ns: float) -> AmpCheck:
    """Put a prediction beside the step time that mixed precision then had.

    Args:
        gain: The prediction.
        mixed_step_ns: Mean step time in mixed precision, measured as the recording's was.

    Raises:
        ValueError: The time is not above 0.

    Example:
        >>> gain = AmpGain("A100 40GB", 5, 100e6, (), 0.0, 20e6, 60e6)
        >>> check_prediction(gain, 50e6)
        AmpCheck(predicted=(1.25, 2.5), measured=2.0, held=True)
    """
    if not mixed_step_ns > 0:
        raise ValueError(f"a step of {mixed_step_ns} ns was not measured: give the mean step time of the mixed run")
    low, high = gain.speedup
    measured = gain.step_ns / mixed_step_ns
    return AmpCheck((low, high), measured, low <= measured <= high)
