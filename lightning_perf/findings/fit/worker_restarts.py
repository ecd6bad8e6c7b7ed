"""The rule for data loaders that start their worker processes again in every epoch."""

from __future__ import annotations

from typing import Literal

from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.fit.fit_finding import fit_finding, is_worth_it, of_fit, times
from lightning_perf.units import format_duration

__all__ = ["worker_restarts"]

RESTART_SHARE = 0.8
"""Least share of a restart that persistent workers save. They still receive the order of the next epoch."""


def worker_restarts(fit: FitTime) -> Finding | None:
    """Find data loaders that start their worker processes again in every epoch.

    Model: persistent workers save most of each restart, and at most also the wait for the first batch after it.
    """
    evidence, low_ns, high_ns, stages = [], 0.0, 0.0, []
    for stage in ("training", "validation"):
        found = _restarts(fit, stage)
        if found is None:
            continue
        restarts, workers, start_ns, first_ns = found
        evidence.append(
            f"The {stage} loader has {times(workers, 'worker')} and starts them {times(restarts, 'time')} after the "
            f"first: {format_duration(start_ns / restarts)} per start, and {format_duration(first_ns / restarts)} "
            "until the first batch."
        )
        low_ns += RESTART_SHARE * start_ns
        high_ns += start_ns + first_ns
        stages.append(stage)
    if not stages or not is_worth_it(high_ns, fit):
        return None
    return fit_finding(
        "worker-restarts",
        f"Restarted workers: {' and '.join(stages)} start worker processes in every epoch, for {of_fit(high_ns, fit)}",
        evidence,
        "Keep the workers alive between epochs: DataLoader(…, persistent_workers=True).",
        saving_ns=(low_ns, high_ns),
        fit=fit,
        model="Persistent workers save 80 % of each restart, and at most also the wait for its first batch.",
    )


def _restarts(fit: FitTime, stage: Literal["training", "validation"]) -> tuple[int, int, float, float] | None:
    """Return the restarts of a loop's workers, their number, and the time of all starts and of all first batches."""
    listed = [start for start in fit.starts if start.stage == stage and not start.persistent][1:]
    if not listed:
        return None
    # The list is limited in length, and the count is not.
    restarts = max(len(listed), fit.group("worker start-up").part(stage).count - 1)
    factor = restarts / len(listed)
    start_ns = factor * sum(start.start_ns for start in listed)
    first_ns = factor * sum(start.first_batch_ns for start in listed)
    return restarts, listed[0].workers, start_ns, first_ns
