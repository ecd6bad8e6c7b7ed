"""The rule for loggers that hold the training up."""

from __future__ import annotations

from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.fit.fit_finding import fit_finding, is_worth_it, of_fit, times
from lightning_perf.units import format_duration

__all__ = ["slow_logger"]

PERIODIC = ("log_metrics", "save")
"""Methods that run again and again. The others run once per fit or per checkpoint."""

LESS = 10
"""Logging is advised at steps that are this many times as far apart."""


def slow_logger(fit: FitTime) -> Finding | None:
    """Find loggers that hold the training up.

    Model: logging a tenth as often saves half to nine tenths of the periodic calls. Other calls may run in the
    background.
    """
    group = fit.group("logging")
    if not group.parts or not is_worth_it(group.time_ns, fit):
        return None
    top = group.parts[0]
    logger, _, method = top.name.rpartition(".")
    periodic_ns = sum(part.time_ns for part in group.parts if part.name.rpartition(".")[2] in PERIODIC)
    once_ns = group.time_ns - periodic_ns
    every = fit.facts.log_every_n_steps
    evidence = [
        f"{part.name} takes {format_duration(part.time_ns)} in {times(part.count, 'call')}."
        for part in group.parts[:3]
        if part.time_ns >= 0.05 * group.time_ns
    ]
    if method in PERIODIC:
        further = f"log_every_n_steps={LESS * every}" if every else "log_every_n_steps=500"
        action = f"Log less often: Trainer({further}), or let the logger write in a background thread."
    else:
        action = f"Let {logger} do this work in the background, or upload after the training, e.g. in its offline mode."
    return fit_finding(
        "slow-logger",
        f"Slow logger: training waits {of_fit(group.time_ns, fit)} for {logger}",
        evidence,
        action,
        saving_ns=(0.5 * periodic_ns, 0.9 * periodic_ns + once_ns),
        fit=fit,
        model="Logging a tenth as often saves half to nine tenths of the calls at steps.",
    )
