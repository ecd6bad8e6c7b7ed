"""The rule for runs in which every n-th step takes longer than the others."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.findings.finding import MIN_SHARE, Finding, finding
from lightning_perf.findings.savings import RECORD_STACKS
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["periodic_steps"]


def periodic_steps(run: StepTimes, lead: RankAnalysis | None) -> Finding | None:
    """Find steps at regular distances that take longer, in the step log of the run.

    Model: the extra time goes away, or half of it if the work is needed.

    Args:
        run: The step log of the run.
        lead: The rank that the report describes first. Its recording names the loggers; None without a recording.
    """
    periodic = run.periodic
    if periodic is None or periodic.per_step_ns < MIN_SHARE * run.mean_ns:
        return None
    extra_ns, period = periodic.step_ns - periodic.others_ns, periodic.period
    loop = lead.metadata.loop if lead is not None else None
    logging = loop is not None and loop.log_every_n_steps == period
    loggers = " and ".join(loop.loggers) if loop is not None else ""
    evidence = [
        (
            f"{format_count(periodic.steps)} steps at this distance take {format_duration(periodic.step_ns)}, the "
            f"others {format_duration(periodic.others_ns)}. That is {format_share(periodic.per_step_ns / run.mean_ns)} "
            "of the mean step."
        )
    ]
    if logging:
        evidence.append(f"log_every_n_steps is {period}: Lightning calls {loggers or 'its loggers'} in these steps.")
        fewer = f"Trainer(log_every_n_steps={10 * period})"
        action = f"Log less often: {fewer}, or let the logger write in a background thread."
    else:
        action = (
            f"Find the code that runs every {period} steps, e.g. in a callback, and run it less often. {RECORD_STACKS}"
        )
    return finding(
        "periodic-steps",
        f"Periodic steps: every {_ordinal(period)} step takes {format_duration(extra_ns)} longer"
        f"{f', when {loggers} logs' if logging and loggers else ''}",
        evidence,
        action,
        saving_ns=(periodic.per_step_ns / 2, periodic.per_step_ns),
        step_ns=float(run.mean_ns),
        model="Half to all of the extra time goes away.",
        rank=lead.rank if lead is not None else None,
    )


def _ordinal(number: int) -> str:
    """Return a number as an ordinal.

    Example:
        >>> [_ordinal(number) for number in (2, 3, 10, 11, 21, 50)]
        ['2nd', '3rd', '10th', '11th', '21st', '50th']
    """
    last = 0 if 10 <= number % 100 < 20 else number % 10
    ending = {1: "st", 2: "nd", 3: "rd"}.get(last, "th")
    return f"{number}{ending}"
