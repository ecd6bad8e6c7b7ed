"""The numbers that are compared: what each is, and how a run record gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.record import Epoch, RunRecord
from lightning_perf.statistics.censored import ReachTime

__all__ = ["METRICS", "Accuracy", "Metric", "Scale", "find_accuracy", "reach_time", "run_values"]


LOWER_IS_BETTER = ("loss", "err")
"""Parts of the names of metrics that are no accuracy, whatever their values."""

ROUNDING = 1e-6


class Scale(str, Enum):
    """How two arms' values are set against each other."""

    RATIO = "ratio"
    DIFFERENCE = "difference"


@dataclass(frozen=True)
class Metric:
    """One number a run.

    Attributes:
        name: Its name, as in a gate.
        title: Its name for people.
        unit: ``s``, ``ms``, ``samples/s``, ``share`` or ``bytes``.
        scale: Ratio for what is positive by nature, difference for shares.
        higher_is_better: Which direction is good.
    """

    name: str
    title: str
    unit: str
    scale: Scale
    higher_is_better: bool


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("step_time", "step time", "ms", Scale.RATIO, higher_is_better=False),
        Metric("train_time", "training time", "s", Scale.RATIO, higher_is_better=False),
        Metric("throughput", "throughput", "samples/s", Scale.RATIO, higher_is_better=True),
        Metric("time_to_accuracy", "time to accuracy", "s", Scale.RATIO, higher_is_better=False),
        Metric("accuracy", "accuracy", "share", Scale.DIFFERENCE, higher_is_better=True),
        Metric("device_memory", "peak device memory", "bytes", Scale.RATIO, higher_is_better=False),
        Metric("host_memory", "peak host memory", "bytes", Scale.RATIO, higher_is_better=False),
    )
}


@dataclass(frozen=True)
class Accuracy:
    """The metric that is the runs' accuracy.

    Attributes:
        name: Its name among the metrics of the epochs.
        in_percent: Whether it was logged in per cent, and not as a share of 1.
    """

    name: str
    in_percent: bool = False

    def at(self, epoch: Epoch) -> float | None:
        """The accuracy after an epoch, as a share; None for nan, and where the epoch has none."""
        value = epoch.metrics.get(self.name)
        return value / 100 if value is not None and self.in_percent else value

    def is_in(self, run: RunRecord) -> bool:
        """Whether a run logged it."""
        return any(self.name in epoch.metrics for epoch in run.epochs)


def find_accuracy(runs: Sequence[RunRecord], name: str | None = None) -> Accuracy | None:
    """Find the metric that is the accuracy.

    Args:
        runs: The runs.
        name: The metric's name, when the user gave it.

    Returns:
        The accuracy: of the metrics with "acc" in their names that every run with epochs has, one of validation before
        one of training; None when there is none.

    Raises:
        CompareError: The given name is in no run, or is no accuracy.
    """
    of_runs = [{name for epoch in run.epochs for name in epoch.metrics} for run in runs if run.epochs]
    if name is not None:
        if not any(name in metrics for metrics in of_runs):
            found = ", ".join(sorted(set().union(*of_runs))) or "none"
            raise CompareError(f'No run has a metric "{name}". They have: {found}.')
        if any(word in name.lower() for word in LOWER_IS_BETTER):
            raise CompareError(f"{name}: looks like a metric that is better when lower. An accuracy is when higher.")
        accuracy = _read_scale(runs, name)
        if accuracy is None:
            raise CompareError(f"{name}: is no accuracy: it has values outside of 0 to 1, and of 0 to 100 %.")
        return accuracy
    known = set.intersection(*of_runs) if of_runs else set()
    candidates = (_read_scale(runs, metric) for metric in sorted(known, key=_rank) if "acc" in metric.lower())
    return next((accuracy for accuracy in candidates if accuracy is not None), None)


def _read_scale(runs: Sequence[RunRecord], name: str) -> Accuracy | None:
    """Whether values are shares or per cent; None when they can be neither."""
    logged = [value for run in runs for epoch in run.epochs if (value := epoch.metrics.get(name)) is not None]
    low, high = min(logged, default=0.0), max(logged, default=0.0)
    if low < 0 or high > 100 + ROUNDING:
        return None
    return Accuracy(name, in_percent=high > 1 + ROUNDING)


def _rank(metric: str) -> tuple[int, int, str]:
    lower = metric.lower()
    kind = 0 if lower.startswith("val") else 1 if lower.startswith("test") else 3 if "train" in lower else 2
    return kind, len(metric), metric


def run_values(run: RunRecord, accuracy: Accuracy | None, goal: float | None) -> dict[str, float | None]:
    """Read every metric from a run.

    Args:
        run: The run.
        accuracy: The accuracy among its metrics, or None.
        goal: Accuracy to be reached for ``time_to_accuracy``, or None.

    Returns:
        A value for each of `METRICS`; None where the run has none. A time to accuracy is None for a run that missed it.
    """
    reach = reach_time(run, accuracy, goal)
    return {
        "step_time": run.steps.mean_ns / 1e6 if run.steps else None,
        "train_time": run.train_time_s,
        "throughput": run.steps.samples_per_second if run.steps else None,
        "time_to_accuracy": reach.time_s if reach and reach.reached else None,
        "accuracy": _last(run, accuracy),
        "device_memory": run.peak_device_bytes,
        "host_memory": run.peak_host_bytes,
    }


def reach_time(run: RunRecord, accuracy: Accuracy | None, goal: float | None) -> ReachTime | None:
    """When a run first reached an accuracy, or the end of its training if it did not.

    Args:
        run: The run.
        accuracy: The accuracy among its metrics.
        goal: The accuracy to be reached.

    Returns:
        The time, censored for a miss; None without epochs or goal.
    """
    if accuracy is None or goal is None or not run.epochs:
        return None
    for epoch in run.epochs:
        value = accuracy.at(epoch)
        if value is not None and value >= goal:
            return ReachTime(epoch.train_time_s, True)
    return ReachTime(run.epochs[-1].train_time_s, False)


def _last(run: RunRecord, accuracy: Accuracy | None) -> float | None:
    if accuracy is None:
        return None
    return next((accuracy.at(epoch) for epoch in reversed(run.epochs) if accuracy.name in epoch.metrics), None)
