"""The rule for checkpoints that hold the training up."""

from __future__ import annotations

from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.fit.fit_finding import fit_finding, is_worth_it, of_fit, times
from lightning_perf.units import format_duration

__all__ = ["slow_checkpoints"]


def slow_checkpoints(fit: FitTime) -> Finding | None:
    """Find checkpoints that hold the training up while they are gathered and written.

    Model: saving half as often saves half of the time. Writing in the background saves the time of the writes.
    """
    group = fit.group("checkpoints")
    gather, write = group.part("gather"), group.part("write")
    if not gather.count or not is_worth_it(group.time_ns, fit):
        return None
    half_ns = group.time_ns / 2
    return fit_finding(
        "slow-checkpoints",
        f"Slow checkpoints: training waits {of_fit(group.time_ns, fit)} for them",
        (
            (
                f"{times(gather.count, 'checkpoint')} take {format_duration(group.time_ns / gather.count)} each: "
                f"{format_duration(gather.time_ns / gather.count)} to gather the state and "
                f"{format_duration(write.time_ns / gather.count)} to write it."
            ),
        ),
        (
            "Write them in the background: Trainer(plugins=[AsyncCheckpointIO()]). Or save less often: "
            "ModelCheckpoint(every_n_epochs=2), or a larger every_n_train_steps."
        ),
        saving_ns=(min(half_ns, write.time_ns), max(half_ns, write.time_ns)),
        fit=fit,
        model="Saving half as often saves half of the time, and writing in the background saves the writes.",
    )
