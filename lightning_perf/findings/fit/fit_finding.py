"""A finding about a whole fit: thresholds, and the saving as a part of the fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.findings.finding import MIN_SHARE, Finding, finding
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["MIN_SAVING_NS", "fit_finding", "is_worth_it", "of_fit", "times"]

MIN_SAVING_NS = 1_000_000_000
"""Least saving of a fit that is worth a finding. In shorter fits, a few milliseconds would be a large share."""


def is_worth_it(saving_ns: float, fit: FitTime) -> bool:
    """Return whether a saving of the fit is large enough to report: 1 s, and 3 % of the fit."""
    return saving_ns >= MIN_SAVING_NS and saving_ns >= MIN_SHARE * fit.wall_ns


def of_fit(time_ns: float, fit: FitTime) -> str:
    """Return a time with its share of the fit, as text."""
    share = format_share(time_ns / fit.wall_ns if fit.wall_ns else None)
    return f"{format_duration(time_ns)} ({share} of the fit)"


def times(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> times(1, "checkpoint"), times(20, "checkpoint")
        ('1 checkpoint', '20 checkpoints')
    """
    return f"{format_count(number)} {noun if number == 1 else f'{noun}s'}"


def fit_finding(
    kind: str,
    title: str,
    evidence: Iterable[str],
    action: str,
    *,
    saving_ns: tuple[float, float],
    fit: FitTime,
    model: str,
) -> Finding:
    """Make a finding about a whole fit. Its severity follows from the saving as a share of the fit.

    Args:
        kind: The ID of the rule.
        title: The problem in one clause.
        evidence: Figures that show it.
        action: The fix.
        saving_ns: Least and most estimated saving in nanoseconds of the fit.
        fit: The time of the fit.
        model: How the saving was estimated.
    """
    made = finding(
        kind, title, evidence, action, saving_ns=saving_ns, step_ns=float(fit.wall_ns), model=model, rank=fit.rank
    )
    return replace(made, per="fit")
