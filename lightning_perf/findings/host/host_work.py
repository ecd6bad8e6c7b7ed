"""The rule for devices that wait while Python runs outside the model: logging, metrics, callbacks."""

from __future__ import annotations

from lightning_perf.analysis.host.user_code import function_text
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import RECORD_STACKS, step_ns, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["host_work"]


PHASES = ("validation", "checkpoint", "other")
"""Phases with such work. Python in the forward pass belongs to the model."""


def host_work(analysis: RankAnalysis) -> Finding | None:
    """Find steps in which the device idles while the host runs nothing but Python.

    Python between operators counts as launch-bound instead. Model: the work is done every tenth step and costs a tenth,
    or half of it is needed.
    """
    idle, launches = analysis.idle, analysis.launches
    if idle is None:
        return None
    steps = max(idle.steps, 1)
    idle_ns = next((row.total_ns for row in idle.classes if row.name == "host_other"), 0) / steps
    if launches is not None and launches.launch_bound is not None:
        idle_ns -= launches.launch_bound.python_ns / steps
    around_ns = sum(analysis.phases.time_ns(phase, "host_other") or 0.0 for phase in PHASES)
    spent_ns = min(idle_ns, around_ns)
    if not analysis.breakdown.marked or not worth_it(spent_ns, analysis):
        return None  # a recording without marked steps also covers the time before and after the training
    return finding(
        "host-work",
        f"Host work: the device waits for Python {format_share(spent_ns / step_ns(analysis))} of the step",
        (
            (
                f"The device idles {format_duration(spent_ns)} per step while the host runs neither operators nor "
                "runtime calls."
            ),
        ),
        _action(analysis),
        saving_ns=(spent_ns / 2, 0.9 * spent_ns),
        step_ns=step_ns(analysis),
        model="Done every tenth step, the work costs a tenth. Half of it may have to stay.",
        rank=analysis.rank,
    )


def _action(analysis: RankAnalysis) -> str:
    """Return the fix, with the function that takes the time or the way to find it."""
    advice = (
        "Do less between batches: Trainer(log_every_n_steps=50), metrics at the end of the epoch, and callbacks that "
        "return early in on_train_batch_end."
    )
    found = [pause for phase in PHASES if analysis.pauses is not None and (pause := analysis.pauses.phase(phase))]
    function = max(found, key=lambda pause: pause.mean_ns).function if found else None
    if function is not None:
        return f"Look at {function_text(function)}. {advice}"
    return advice if analysis.metadata.with_stack else f"{advice} {RECORD_STACKS}"
