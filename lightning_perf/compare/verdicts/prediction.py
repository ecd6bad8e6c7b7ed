"""The gain that a profiled run promised for mixed precision, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_perf.compare.record import RunRecord
from lightning_perf.statistics.values import Estimate

__all__ = ["Prediction", "check_prediction"]


@dataclass(frozen=True)
class Prediction:
    """What mixed precision was predicted to bring, beside what it brought.

    Attributes:
        run_id: The profiled run of the baseline that the prediction is from.
        low: Least speed-up of a step predicted.
        high: Most speed-up predicted.
        measured: Speed-up measured: step time of the baseline over that of the candidate, with its interval.
        held: Whether the measured speed-up is within what was predicted; None when nothing was measured.
    """

    run_id: str
    low: float
    high: float
    measured: Estimate
    held: bool | None


def check_prediction(
    baseline: Sequence[RunRecord], candidate: Sequence[RunRecord], step_time: Estimate | None
) -> Prediction | None:
    """Set what a profiled run of the baseline promised beside what came, for a candidate that is in mixed precision.

    Args:
        baseline: Runs of the baseline, those left out as well: the profiled one is a warm-up.
        candidate: Runs of the candidate.
        step_time: Measured ratio candidate / baseline, or None.

    Returns:
        Both; None when nothing was promised, or for another kind of candidate.
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
