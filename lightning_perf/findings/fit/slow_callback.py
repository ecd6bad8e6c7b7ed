"""The rule for callbacks that take more than 3 % of the fit."""

from __future__ import annotations

from collections import defaultdict

from lightning_perf.analysis.steps.fit_time import FitPart, FitTime
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.fit.fit_finding import fit_finding, is_worth_it, of_fit, times
from lightning_perf.units import format_duration

REMEDIES = {
    "TQDMProgressBar": "Refresh the bar less often: TQDMProgressBar(refresh_rate=50).",
    "RichProgressBar": "Refresh the bar less often: RichProgressBar(refresh_rate=50).",
    "DeviceStatsMonitor": "Remove DeviceStatsMonitor, or raise Trainer(log_every_n_steps=…).",
    "LearningRateMonitor": 'Log the rate once per epoch: LearningRateMonitor(logging_interval="epoch").',
}
"""Fixes for callbacks of Lightning."""


ONCE = frozenset({"setup", "teardown", "on_fit_start", "on_fit_end", "on_train_start", "on_train_end"})
"""Hooks that a fit calls once for each callback. To run them less often is no fix."""


def slow_callback(fit: FitTime) -> Finding | None:
    """Find the callback that takes the largest part of the fit, if that is 3 % or more.

    Model: half to nine tenths of its time in repeated hooks goes away. A hook that runs once per fit is named only if
    no callback is slow in repeated ones.
    """
    by_class: defaultdict[str, list[FitPart]] = defaultdict(list)
    once = []
    for part in fit.group("callbacks").parts:
        name, _, hook = part.name.partition(".")
        if part.count > 1 and hook not in ONCE:
            by_class[name].append(part)
        else:
            once.append(part)
    sums_ns = {name: sum(part.time_ns for part in parts) for name, parts in by_class.items()}
    slow = sorted((name for name in sums_ns if is_worth_it(sums_ns[name], fit)), key=lambda name: -sums_ns[name])
    if not slow:
        return _once(fit, once)
    name = slow[0]
    top = by_class[name][0]
    hook = top.name.partition(".")[2]
    evidence = [
        (
            f"{top.name} takes {format_duration(top.time_ns)} in {times(top.count, 'call')}, "
            f"{format_duration(top.time_ns / max(top.count, 1))} each."
        ),
        *(f"{other} takes {of_fit(sums_ns[other], fit)}." for other in slow[1:3]),
    ]
    rarely = "every 10th batch" if "batch" in hook or "step" in hook else "every 10th epoch"
    return fit_finding(
        "slow-callback",
        f"Slow callback: {name} takes {of_fit(sums_ns[name], fit)}",
        evidence,
        REMEDIES.get(name, f"Run the work of {top.name} less often, e.g. {rarely}, or in a background thread."),
        saving_ns=(0.5 * sums_ns[name], 0.9 * sums_ns[name]),
        fit=fit,
        model="Half to nine tenths of the callback's time goes away.",
    )


def _once(fit: FitTime, parts: list[FitPart]) -> Finding | None:
    """Name the longest hook that ran once; None if it is short."""
    top = max(parts, key=lambda part: part.time_ns, default=None)
    if top is None or not is_worth_it(top.time_ns, fit):
        return None
    return fit_finding(
        "slow-callback",
        f"Slow callback: {top.name} takes {of_fit(top.time_ns, fit)}, once per fit",
        (f"It ran {times(top.count, 'time')}, so a longer fit makes its share smaller.",),
        f"Look for work in {top.name} that you can cache between fits or leave out.",
        saving_ns=(0.0, float(top.time_ns)),
        fit=fit,
        model="At most all of it goes away.",
    )
