"""Compare the gain that a profiled run predicted for mixed precision with the measured gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_perf.compare.records.record import RunRecord
from lightning_perf.statistics.values import Estimate

__all__ = ["Prediction", "check_prediction"]


@dataclass(frozen=True)
class Prediction:
    """The predicted and the measured speed-up of mixed precision.

    Attributes:
        run_id: The profiled run of the baseline with the prediction.
        low: Smallest predicted speed-up of a step.
        high: Largest predicted speed-up of a step.
        measured: Measured speed-up: step time of the baseline over that of the candidate, with its interval.
        held: Whether the measured speed-up is in the predicted range; None without a measurement.
    """

    run_id: str
    low: float
    high: float
    measured: Estimate
    held: bool | None


def check_prediction(
    baseline: Sequence[RunRecord], candidate: Sequence[RunRecord], step_time: Estimate | None
) -> Prediction | None:
    """Compare the predicted with the measured speed-up of a candidate in mixed precision.

    Args:
        baseline: Runs of the baseline, including those left out: the profiled one is a warm-up.
        candidate: Runs of the candidate.
        step_time: Measured ratio candidate / baseline, or None.

    Returns:
        Both speed-ups; None without a prediction, or for a candidate that is not in mixed precision.
    """
    if not candidate or not all("mixed" in str(run.facts.get("train.precision")) for run in candidate):
        return None
    source = next((run for run in baseline if run.predicted_speedup is not None), None)
    if source is None or source.predicted_speedup is None or step_time is None:
        return None
    low, high = source.predicted_speedup
    measured = step_time.map(lambda ratio: 1 / ratio)
    held = low <= measured.value <= high if measured.value is not None else None
    return Prediction(source.run_id, low, high, measured, held)
