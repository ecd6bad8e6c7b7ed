"""Compare the work of two arms: samples per step, epochs, and steps that become slower during a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from lightning_perf.compare.records.record import RunRecord

SAME_SHARE = 0.01
"""Samples per step and epochs that differ by a larger share make times incomparable."""

SAME_SAMPLES = 0.1
"""The same for the samples of all steps, which are less certain: the warm-up is not counted."""

DRIFT_APART = 0.05
"""A note says that the steps of one arm become slower within a run than those of the other by at least this share."""

Runs = Sequence[RunRecord]


def samples_per_step(run: RunRecord) -> float | None:
    """Return the mean number of samples of a step, or None if it is not known."""
    steps = run.steps
    return steps.samples_per_second * steps.mean_ns / 1e9 if steps is not None and steps.samples_per_second else None


def _epochs(run: RunRecord) -> float | None:
    return float(len(run.epochs)) or None


def _samples(run: RunRecord) -> float | None:
    of_step = samples_per_step(run)
    return run.epochs[-1].steps * of_step or None if run.epochs and of_step is not None else None


_WORK: tuple[tuple[str, str, Callable[[RunRecord], float | None], float], ...] = (
    ("step_time", "samples per step", samples_per_step, SAME_SHARE),
    ("train_time", "epochs", _epochs, SAME_SHARE),
    ("train_time", "samples", _samples, SAME_SAMPLES),
)
"""Per row a metric, the name of an amount that its times depend on, the amount, and by which share it may differ."""


def different_work(baseline: Runs, candidate: Runs) -> Mapping[str, str]:
    """Return the metrics that do not compare the same work, with the reason."""
    reasons: dict[str, str] = {}
    for metric, what, amount, share in _WORK:
        means = [_mean(amount, runs) for runs in (baseline, candidate)]
        if metric in reasons or means[0] is None or means[1] is None:
            continue
        if abs(math.log(means[1] / means[0])) > math.log1p(share):
            first, second = (f"{mean:.4g}" for mean in means)
            reasons[metric] = f"the runs have {second} {what}, those of the baseline {first}"
    return reasons


def drift_lines(arms: Mapping[str, Runs]) -> Iterator[str]:
    """Describe steps that become slower during the runs of one arm only."""
    drifts = {
        name: float(np.median(known))
        for name, runs in arms.items()
        if (known := [run.steps.drift for run in runs if run.steps is not None and run.steps.drift is not None])
    }
    baseline, *others = arms
    for name in others:
        if {name, baseline} <= drifts.keys() and abs(drifts[name] - drifts[baseline]) >= DRIFT_APART:
            changes = " and ".join(f"{100 * drifts[arm]:+.0f} % in {arm}".replace("-", "−") for arm in (name, baseline))
            yield f"Within a run, the step time changes by {changes}. The means hold for runs of this length only."


def _mean(amount: Callable[[RunRecord], float | None], runs: Runs) -> float | None:
    known = [value for run in runs if (value := amount(run)) is not None]
    return sum(known) / len(known) if known and len(known) == len(runs) else None
