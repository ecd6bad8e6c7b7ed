"""The metrics of a comparison: their names, units and directions, and how to read them from a run record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.run_files.run_record import EpochEnded
from lightning_perf.statistics.censored import ReachTime

LOWER_IS_BETTER = ("loss", "err")
"""A metric with one of these parts in its name is never an accuracy, whatever its values."""

LOWER_WORDS = ("perplexity", "ppl", "nll", "bpb", "bpc", "wer", "cer", "mae", "mse", "rmse", "mape", "fid")
HIGHER_WORDS = (
    "auc",
    "auroc",
    "f1",
    "iou",
    "miou",
    "dice",
    "map",
    "ap",
    "bleu",
    "rouge",
    "psnr",
    "ssim",
    "r2",
    "score",
)
"""Whole words in a metric's name that show its better direction."""

_WORD = re.compile(r"[^\W_]+")

ROUNDING = 1e-6


class Scale(str, Enum):
    """How the values of two arms are compared."""

    RATIO = "ratio"
    DIFFERENCE = "difference"


@dataclass(frozen=True)
class Metric:
    """A metric of a comparison: one number per run.

    Attributes:
        name: Its name in gates and in the JSON.
        title: Its name in tables and sentences.
        unit: ``s``, ``ms``, ``samples/s``, ``share`` or ``bytes``; empty for a number without a unit.
        scale: Ratio for positive quantities, difference for shares.
        higher_is_better: Whether a larger value is better.
    """

    name: str
    title: str
    unit: str
    scale: Scale
    higher_is_better: bool

    @property
    def is_timed(self) -> bool:
        """Whether it is measured with a clock, so that two runs never give exactly the same value."""
        return self.unit in ("s", "ms", "samples/s")


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("step_time", "step time", "ms", Scale.RATIO, higher_is_better=False),
        Metric("train_time", "training time", "s", Scale.RATIO, higher_is_better=False),
        Metric("throughput", "throughput", "samples/s", Scale.RATIO, higher_is_better=True),
        Metric("fit_throughput", "throughput of the whole fit", "samples/s", Scale.RATIO, higher_is_better=True),
        Metric("time_to_first_step", "time to the first step", "s", Scale.RATIO, higher_is_better=False),
        Metric("time_to_accuracy", "time to accuracy", "s", Scale.RATIO, higher_is_better=False),
        Metric("accuracy", "accuracy", "share", Scale.DIFFERENCE, higher_is_better=True),
        Metric("loss", "loss", "", Scale.RATIO, higher_is_better=False),
        Metric("score", "score", "", Scale.RATIO, higher_is_better=True),
        Metric("device_memory", "peak device memory", "bytes", Scale.RATIO, higher_is_better=False),
        Metric("host_memory", "peak host memory", "bytes", Scale.RATIO, higher_is_better=False),
    )
}
"""The metrics of a comparison, by their names."""

QUALITY_METRICS = ("accuracy", "loss", "score")
"""Metrics that show how well a run learned. A comparison has at most one of them."""


@dataclass(frozen=True)
class Quality:
    """The logged metric that shows how well a run learned: an accuracy, a loss or another score.

    Attributes:
        name: The name under which the runs logged it.
        in_percent: Whether it was logged in per cent and not as a share of 1.
        metric: Its entry in `METRICS`: ``accuracy`` for a share of 1, ``loss`` if lower is better, else ``score``.
    """

    name: str
    in_percent: bool = False
    metric: str = "accuracy"

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a share of correct answers, compared in percentage points."""
        return self.metric == "accuracy"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value is better."""
        return METRICS[self.metric].higher_is_better

    def at(self, epoch: EpochEnded) -> float | None:
        """Return the value after an epoch, an accuracy as a share; None if it is nan or was not logged."""
        value = epoch.metrics.get(self.name)
        return value / 100 if value is not None and self.in_percent else value

    def is_in(self, run: RunRecord) -> bool:
        """Return whether a run logged the metric."""
        return any(self.name in epoch.metrics for epoch in run.epochs)


def find_quality(runs: Sequence[RunRecord], accuracy: str | None = None, quality: str | None = None) -> Quality | None:
    """Find the metric that shows how well the runs learned.

    Args:
        runs: The runs.
        accuracy: Name of the accuracy, if the user gave it.
        quality: Name of any other metric with its direction, such as ``val_loss:min``, if the user gave it. Names such
            as ``val_loss`` or ``test_f1`` need no direction.

    Returns:
        The given metric. Without one, the first of these that every run with epochs logged: an accuracy, a score, a
        loss. A validation metric comes before a training metric. None if the runs share no such metric.

    Raises:
        CompareError: No run logged the given name, its direction is unknown, or it is not an accuracy.
    """
    if quality is not None:
        if accuracy is not None:
            raise CompareError(f"--accuracy {accuracy} and --quality {quality}: choose one of them.")
        return _read_quality(runs, quality)
    found = find_accuracy(runs, accuracy)
    if found is not None:
        return found
    known = _common_metrics(runs)
    directions = {name: direction for name in known if (direction := _direction(name)) is not None}
    # Validation says more than training, and a score more than a loss.
    best = min(directions, key=lambda name: (_rank(name)[0], directions[name] == "loss", _rank(name)), default=None)
    return Quality(best, metric=directions[best]) if best is not None else None


def _read_quality(runs: Sequence[RunRecord], text: str) -> Quality:
    name, _, mode = text.rpartition(":")
    if mode not in ("min", "max"):
        name, mode = text, ""
    _check_logged(runs, name)
    if mode != "min" and "acc" in name.lower() and not _is_loss(name):
        accuracy = _read_scale(runs, name)
        if accuracy is not None:
            return accuracy
    metric = {"min": "loss", "max": "score"}.get(mode) or _direction(name)
    if metric is None:
        raise CompareError(
            f'--quality "{name}": the name does not show whether higher or lower is better. '
            f"Write {name}:max or {name}:min."
        )
    return Quality(name, metric=metric)


def _direction(name: str) -> str | None:
    """Return the entry of `METRICS` for a logged name, or None if the name does not show a direction."""
    words = {word.lower() for word in _WORD.findall(name)}
    if _is_loss(name) or words & set(LOWER_WORDS):
        return "loss"
    return "score" if words & set(HIGHER_WORDS) else None


def _is_loss(name: str) -> bool:
    return any(part in name.lower() for part in LOWER_IS_BETTER)


def is_broken(run: RunRecord, quality: Quality | None, baseline: Sequence[RunRecord]) -> bool:
    """Return whether a run diverged: its quality ended as nan or inf, or a loss did that is finite in the baseline."""
    names = {name for epoch in run.epochs for name in epoch.metrics if _is_loss(name)}
    if quality is not None and quality.is_in(run) and _last_logged(run, quality.name) is None:
        return True
    return any(
        _last_logged(run, name) is None and all(_last_logged(other, name) is not None for other in baseline)
        for name in names
    )


def _last_logged(run: RunRecord, name: str) -> float | None:
    return next((epoch.metrics[name] for epoch in reversed(run.epochs) if name in epoch.metrics), None)


def _common_metrics(runs: Sequence[RunRecord]) -> set[str]:
    of_runs = [{name for epoch in run.epochs for name in epoch.metrics} for run in runs if run.epochs]
    return set.intersection(*of_runs) if of_runs else set()


def _check_logged(runs: Sequence[RunRecord], name: str) -> None:
    logged = {metric for run in runs for epoch in run.epochs for metric in epoch.metrics}
    if name not in logged:
        raise CompareError(f'No run logged a metric "{name}". They logged: {", ".join(sorted(logged)) or "none"}.')


def find_accuracy(runs: Sequence[RunRecord], name: str | None = None) -> Quality | None:
    """Find the metric that is the accuracy.

    Returns:
        The accuracy: a metric with "acc" in its name that every run with epochs logged. A validation metric comes
        before a training metric. None if the runs share no accuracy.
    """
    if name is not None:
        _check_logged(runs, name)
        if _is_loss(name):
            raise CompareError(
                f'--accuracy "{name}": the name looks like a loss or an error, where lower is better. '
                f"Give --quality {name}:min instead."
            )
        accuracy = _read_scale(runs, name)
        if accuracy is None:
            raise CompareError(
                f'--accuracy "{name}": not an accuracy, because it has values outside 0 to 1 and outside 0 to 100 %. '
                f"Give --quality {name}:max instead."
            )
        return accuracy
    known = sorted(_common_metrics(runs), key=_rank)
    candidates = (_read_scale(runs, metric) for metric in known if "acc" in metric.lower() and not _is_loss(metric))
    return next((accuracy for accuracy in candidates if accuracy is not None), None)


def _read_scale(runs: Sequence[RunRecord], name: str) -> Quality | None:
    """Return the metric as an accuracy in shares or in per cent; None if its values can be neither."""
    logged = [value for run in runs for epoch in run.epochs if (value := epoch.metrics.get(name)) is not None]
    low, high = min(logged, default=0.0), max(logged, default=0.0)
    if low < 0 or high > 100 + ROUNDING:
        return None
    return Quality(name, in_percent=high > 1 + ROUNDING)


def _rank(metric: str) -> tuple[int, int, str]:
    lower = metric.lower()
    kind = 0 if lower.startswith("val") else 1 if lower.startswith("test") else 3 if "train" in lower else 2
    return kind, len(metric), metric


def run_values(run: RunRecord, quality: Quality | None, goal: float | None) -> dict[str, float | None]:
    """Read every metric from a run.

    Args:
        run: The run.
        quality: The metric that shows how well it learned, or None.
        goal: Accuracy to reach for ``time_to_accuracy``, or None.

    Returns:
        A value for each of `METRICS`, or None where the run lacks it. A run that missed the goal lacks a time to
        accuracy.
    """
    reach = reach_time(run, quality, goal)
    learned = dict.fromkeys(QUALITY_METRICS) | ({quality.metric: _last(run, quality)} if quality is not None else {})
    return {
        "step_time": run.steps.mean_ns / 1e6 if run.steps else None,
        "train_time": run.train_time_s,
        "throughput": run.steps.samples_per_second if run.steps else None,
        "fit_throughput": run.fit_samples_per_second,
        "time_to_first_step": run.first_step_s,
        "time_to_accuracy": reach.time_s if reach and reach.reached else None,
        **learned,
        "device_memory": run.peak_device_bytes,
        "host_memory": run.peak_host_bytes,
    }


def reach_time(run: RunRecord, accuracy: Quality | None, goal: float | None) -> ReachTime | None:
    """Return the training time at which a run first reached an accuracy.

    Returns:
        The time; for a run that missed the goal, the end of its training, marked as censored. None without epochs or
        without a goal.
    """
    if accuracy is None or goal is None or not run.epochs:
        return None
    for epoch in run.epochs:
        value = accuracy.at(epoch)
        if value is not None and value >= goal:
            return ReachTime(epoch.train_time_s, True)
    return ReachTime(run.epochs[-1].train_time_s, False)


def _last(run: RunRecord, quality: Quality) -> float | None:
    return next((quality.at(epoch) for epoch in reversed(run.epochs) if quality.name in epoch.metrics), None)
