"""The metrics of a comparison: their names, units and directions, and how to read them from a run record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct

from lightning_perf.compare.records.record import RunRecord
from lightning_perf.errors import CompareError
from lightning_perf.run_files.run_record import EpochEnded
from lightning_perf.statistics.collapse import ReachTime

ACCURACY_WORDS = frozenset(("acc", "accuracy"))
LOWER_WORDS = frozenset(
    re.findall(
        r"\w+",
        "loss losses err error errors inaccuracy perplexity ppl nll bpb bpc wer cer mae mse rmse mape fid brier ece kl "
        "distance dist divergence",
    )
)
HIGHER_WORDS = frozenset(re.findall(r"\w+", "auc auroc f1 iou miou dice map ap bleu rouge psnr ssim r2 score recall"))
OTHER_WORDS = frozenset(("scale", "weight", "time", "lr", "s", "ms", "grad", "norm"))
"""Whole words in a metric's name that show its better direction. Other words show that it is something else, and lower
words outweigh higher ones: a dice loss is a loss."""

COLLAPSED_SHARE = 0.2
"""Runs logged in different scales, unless those with low values are below this share of the others."""

_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")

ROUNDING = 1e-6


class Scale(str, Enum):
    """How the values of two arms are compared."""

    RATIO = "ratio"
    DIFFERENCE = "difference"


class Metric(Struct, frozen=True):
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


class Quality(Struct, frozen=True):
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
        The given metric. Without one, the first of these that any run logged: an accuracy, a score, a loss. A
        validation metric comes before a training metric. None if not every run with epochs logged that metric: another
        one would hide that it is missing.

    Raises:
        CompareError: No run logged the given name, its direction is unknown, it is not an accuracy, or some runs logged
            it in per cent and others as a share.
    """
    if quality is not None:
        if accuracy is not None:
            raise CompareError(f"--accuracy {accuracy} and --quality {quality}: choose one of them.")
        return _read_quality(runs, quality)
    if accuracy is not None:
        return _read_accuracy(runs, accuracy)
    best = best_logged(runs)
    return best if best is not None and all(best.is_in(run) for run in runs if run.epochs) else None


def best_logged(runs: Sequence[RunRecord]) -> Quality | None:
    """Return the metric that shows best how well runs learned, of all that some of them logged."""
    names = sorted({name for run in runs for epoch in run.epochs for name in epoch.metrics}, key=_rank)
    known = {name: kind for name in names if (kind := _kind(name, runs)) is not None}
    for name in (name for name, kind in known.items() if kind == "accuracy"):
        accuracy = _read_scale(runs, name)
        if accuracy is not None:
            return accuracy
        known[name] = "score"
    # Validation says more than training, and a score more than a loss.
    best = min(known, key=lambda name: (_rank(name)[0], known[name] == "loss", _rank(name)), default=None)
    return Quality(best, metric=known[best]) if best is not None else None


def _read_quality(runs: Sequence[RunRecord], text: str) -> Quality:
    name, _, mode = text.rpartition(":")
    if mode not in ("min", "max"):
        name, mode = text, ""
    _check_logged(runs, name)
    kind = _kind(name, runs)
    if kind == "accuracy" and mode != "min":
        accuracy = _read_scale(runs, name, mixed=mode == "max")
        if accuracy is not None:
            return accuracy
    metric = {"min": "loss", "max": "score"}.get(mode) or kind
    if metric is None:
        raise CompareError(
            f'--quality "{name}": the name does not show whether higher or lower is better. '
            f"Write {name}:max or {name}:min."
        )
    return Quality(name, metric="score" if metric == "accuracy" else metric)


def _kind(name: str, runs: Sequence[RunRecord] = ()) -> str | None:
    """Return the entry of `METRICS` for a logged name: by torchmetrics, else by its words, else None."""
    recorded = {epoch.higher_is_better[name] for run in runs for epoch in run.epochs if name in epoch.higher_is_better}
    words = _words(name)
    if recorded in ({True}, {False}):
        return "loss" if recorded == {False} else "accuracy" if words & ACCURACY_WORDS else "score"
    if words & OTHER_WORDS:
        return None
    if words & LOWER_WORDS:
        return "loss"
    return "accuracy" if words & ACCURACY_WORDS else "score" if words & HIGHER_WORDS else None


def _words(name: str) -> set[str]:
    """Return the words of a name, also those of camel case, and without a number at the end.

    Example:
        >>> sorted(_words("val/MulticlassAccuracy@5"))
        ['5', 'accuracy', 'multiclass', 'multiclassaccuracy', 'val']
    """
    chunks = _WORD.findall(name)
    words = {word.lower() for chunk in chunks for word in (chunk, *_PART.findall(chunk))}
    return words | {word.rstrip("0123456789") for word in words} - {""}


def is_broken(run: RunRecord, quality: Quality | None, baseline: Sequence[RunRecord]) -> bool:
    """Return whether a run diverged: its quality ended as nan or inf, or a loss did that is finite in the baseline."""
    names = {name for epoch in run.epochs for name in epoch.metrics if _kind(name) == "loss"}
    if quality is not None and quality.is_in(run) and _last_logged(run, quality.name) is None:
        return True
    return any(
        _last_logged(run, name) is None and all(_last_logged(other, name) is not None for other in baseline)
        for name in names
    )


def _last_logged(run: RunRecord, name: str) -> float | None:
    return next((epoch.metrics[name] for epoch in reversed(run.epochs) if name in epoch.metrics), None)


def _check_logged(runs: Sequence[RunRecord], name: str) -> None:
    logged = {metric for run in runs for epoch in run.epochs for metric in epoch.metrics}
    if name not in logged:
        raise CompareError(f'No run logged a metric "{name}". They logged: {", ".join(sorted(logged)) or "none"}.')


def _read_accuracy(runs: Sequence[RunRecord], name: str) -> Quality:
    _check_logged(runs, name)
    if _kind(name, runs) == "loss":
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


def _read_scale(runs: Sequence[RunRecord], name: str, *, mixed: bool = False) -> Quality | None:
    """Return the metric as an accuracy in shares or in per cent; None if its values can be neither.

    With `mixed`, it is also None if some runs logged shares and others per cent.
    """
    of_runs = [[value for epoch in run.epochs if (value := epoch.metrics.get(name)) is not None] for run in runs]
    highest = [max(values) for values in of_runs if values]
    if min((value for values in of_runs for value in values), default=0.0) < 0 or max(highest, default=0.0) > 100.0001:
        return None
    percent = [value for value in highest if value > 1 + ROUNDING]
    share = max((value for value in highest if value <= 1 + ROUNDING), default=0.0)
    # In per cent, a collapsed run is at most at 1 % as well, but far from a hundredth of the others.
    if percent and share > COLLAPSED_SHARE * min(percent) / 100:
        if mixed:
            return None
        raise CompareError(
            f"{name}: some runs logged shares of 1 (up to {share:.4g}), others per cent (up to {max(percent):.4g}). "
            f"Log it in one scale. To compare the values unchanged, give --quality {name}:max."
        )
    return Quality(name, in_percent=bool(percent))


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
    """Return the training time at which a run first reached an accuracy; None without epochs or without a goal.

    For a run that missed the goal, it is the end of its training, marked as censored.
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
